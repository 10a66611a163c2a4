"""What is known of one command-line agent, and nothing of how it is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from plimsoll.agents.parts import Part
from plimsoll.agents.protocol import Outcome
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import ExecResult

__all__ = ["HOME", "LOGS", "PATIENCE", "RETRIES", "Adapter", "Launch"]

HOME = "/opt/plimsoll/home"
"""Where an agent keeps its settings and state: neither among the task's files nor in the user's
home, which stays what the task made it."""

LOGS = "/logs/agent"
"""What an agent leaves here, the trial keeps."""

PATIENCE = 3600
"""Seconds that an agent waits for an answer: the policy may be paused for new weights."""

RETRIES = 2
"""How often an agent asks again after a failure. The gateway has tried what is worth a try."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How an agent is started on one instruction."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Files that it reads, by their names in `HOME`."""


class Adapter(Protocol):
    """A command-line agent: what it is made of, how it is started, how its end is read."""

    @property
    def name(self) -> str: ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """The agent's own program is the last."""
        ...

    def launch(self, access: Access, instruction: str) -> Launch: ...

    def outcome(self, done: ExecResult) -> Outcome | None:
        """What its last words say, however it exited; None where it ended without any."""
        ...
