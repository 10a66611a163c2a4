"""What an agent is: set up once in a sandbox, then run once for each step of a task.

It suits programs that live in the sandbox (`sandbox.exec` of a command line) and loops that
live in this process (they call `sandbox.exec` as their tool). An agent does not watch the
clock: the trial cancels `run` when the step's time is over, and the ending is `budget`.
What an agent starts may outlive `run`; the trial kills it before anything is graded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from plimsoll.core.endings import Ending
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import Mount, OnOutput, Sandbox
from plimsoll.tasks.task import Step, Task

__all__ = ["Agent", "Assignment", "Outcome"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """One step of a task, given to an agent in a sandbox."""

    task: Task
    step: Step
    sandbox: Sandbox
    instruction: str
    env: Mapping[str, str]
    user: str | None
    on_output: OnOutput
    """Takes what the agent prints; the trial keeps it, within bounds."""
    policy: Access | None = None
    """How it reaches the policy from where it runs. None for agents that need none."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the agent ended, in its own terms. It says nothing about the reward."""

    ending: Ending = Ending.SUBMITTED
    detail: str = ""
    exit_code: int | None = None
    """Of the agent's own program, where it is one and was not killed."""


class Agent(Protocol):
    """Raises `AgentError` (or `SolutionError`) where it could not work; never grades."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Of the agent's own program; "" where it has none."""
        ...

    @property
    def reference(self) -> bool:
        """Its work is the task's own: where it fails or runs out of time, the task is at fault."""
        ...

    @property
    def needs_policy(self) -> bool:
        """Whether it asks a policy what to do."""
        ...

    @property
    def inside(self) -> bool:
        """Whether it runs in the sandbox, and reaches the policy from there."""
        ...

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What its sandboxes see of the host, read-only: its own program, where that is baked."""
        ...

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        """Prepare the sandbox. A command that fails here raises `SetUpError`."""
        ...

    async def run(self, assignment: Assignment) -> Outcome: ...
