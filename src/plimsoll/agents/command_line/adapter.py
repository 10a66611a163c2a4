"""What is known of one command-line agent, and nothing of how it is run.

The last words of agents that print one JSON object a line.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from plimsoll.agents.layer.components import Component
from plimsoll.agents.protocol import Outcome
from plimsoll.core.endings import Ending
from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import ExecResult

__all__ = [
    "AGENT_HOME",
    "AGENT_LOGS",
    "MAX_RETRIES",
    "REQUEST_TIMEOUT_SECONDS",
    "Adapter",
    "Launch",
    "failure_outcome",
    "last_event",
]

AGENT_HOME = "/opt/plimsoll/home"
"""Where an agent keeps its settings and state: neither among the task's files nor in the user's
home, which stays what the task made it."""

AGENT_LOGS = "/logs/agent"
"""What an agent leaves here, the trial keeps."""

REQUEST_TIMEOUT_SECONDS = 3600
"""Seconds that an agent waits for an answer: the policy may be paused for new weights."""

MAX_RETRIES = 2
"""How often an agent asks again after a failure. The gateway has tried what is worth a try."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How an agent is started on one instruction."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Files that it reads, by their names in `AGENT_HOME`."""


class Adapter(Protocol):
    """A command-line agent: what it is made of, how it is started, how its end is read."""

    @property
    def name(self) -> str: ...

    @property
    def parts(self) -> tuple[Component, ...]:
        """The agent's own program is the last."""
        ...

    def launch(self, access: Access, instruction: str) -> Launch: ...

    def outcome(self, done: ExecResult) -> Outcome | None:
        """What its last words say, however it exited; None where it ended without any."""
        ...


_LONGEST = 500
_CONTEXT = re.compile(
    r"context_length_exceeded|context.?window|context (?:length|limit)|prompt is too long", re.I
)

Event = TypeVar("Event")


def last_event(done: ExecResult, decoder: "msgspec.json.Decoder[Event]") -> Event | None:
    """The last line that can be read: by its tag, the last event of the kinds that are meant."""
    # Other ends of lines, such as U+2028, may stand in JSON's strings as they are.
    for line in reversed(done.stdout.text.split("\n")):
        try:
            return decoder.decode(line)
        except DECODE_ERRORS:
            continue
    return None


def failure_outcome(done: ExecResult, said: str) -> Outcome:
    """The outcome of an agent that gave up, and says why."""
    ending = Ending.BUDGET if _CONTEXT.search(said) else Ending.SUBMITTED
    detail = " ".join(said.split())[:_LONGEST]
    return Outcome(ending, f"{done.describe()}: {detail}", done.exit_code)
