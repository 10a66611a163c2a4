"""The adapter protocol: the components of a command-line agent, its launch, and its outcome.

`last_event` and `failure_outcome` help adapters of agents that print one JSON object a line.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from plimsoll.agents.layer.layer import Component
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
"""The folder for an agent's settings and state. The task's files and the user's home stay
untouched."""

AGENT_LOGS = "/logs/agent"
"""The trial stores the files that an agent writes here."""

REQUEST_TIMEOUT_SECONDS = 3600
"""The time limit of a request to the policy, which may be paused for new weights."""

MAX_RETRIES = 2
"""Retries of a failed request. The gateway has already retried where that makes sense."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The command that starts an agent on one instruction."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Files for the agent, by their names in `AGENT_HOME`."""


class Adapter(Protocol):
    """A command-line agent: its components, its launch, and the interpretation of its output."""

    @property
    def name(self) -> str: ...

    @property
    def components(self) -> tuple[Component, ...]:
        """The agent's own program is the last one."""
        ...

    def launch(self, access: Access, instruction: str) -> Launch: ...

    def outcome(self, done: ExecResult) -> Outcome | None:
        """The outcome that its output reports, whatever the exit code. None without a report."""
        ...


_MAX_DETAIL = 500
_CONTEXT_EXCEEDED = re.compile(
    r"context_length_exceeded|context.?window|context (?:length|limit)|prompt is too long", re.I
)

Event = TypeVar("Event")


def last_event(done: ExecResult, decoder: "msgspec.json.Decoder[Event]") -> Event | None:
    """The last line that the decoder accepts: the last event of its types."""
    # Not splitlines: JSON strings may contain other line ends, such as U+2028, unescaped.
    for line in reversed(done.stdout.text.split("\n")):
        try:
            return decoder.decode(line)
        except DECODE_ERRORS:
            continue
    return None


def failure_outcome(done: ExecResult, message: str) -> Outcome:
    """The outcome of an agent that reported a failure."""
    ending = Ending.BUDGET if _CONTEXT_EXCEEDED.search(message) else Ending.SUBMITTED
    detail = " ".join(message.split())[:_MAX_DETAIL]
    return Outcome(ending, f"{done.describe()}: {detail}", done.exit_code)
