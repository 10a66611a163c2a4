"""The agent protocol: set up once in a sandbox, then run once for each step of a task.

An agent is a program in the sandbox (one `sandbox.exec`), or a loop in this process that uses
`sandbox.exec` as its tool. It does not watch the clock: the trial cancels `run` when the time of
the step is over, and the ending is `budget`. Processes of an agent may outlive `run`; the trial
kills them before grading.
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
    """One step of a task for an agent in a sandbox."""

    step: Step
    sandbox: Sandbox
    instruction: str
    env: Mapping[str, str]
    user: str | None
    on_output: OnOutput
    """Receives the output of the agent, which the trial stores up to a limit."""
    policy: Access | None = None
    """Access to the policy from where the agent runs. None for agents without a policy."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The ending of an agent. It says nothing about the reward."""

    ending: Ending = Ending.SUBMITTED
    detail: str = ""
    exit_code: int | None = None
    """The exit code of the agent's program, if it is one and was not killed."""


class Agent(Protocol):
    """An agent. Raises `AgentError` or `SolutionError` if it fails; never grades."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """The version of the agent's program. "" if it has none."""
        ...

    @property
    def reference(self) -> bool:
        """Whether it runs the task's solution: the task is at fault if it fails or times out."""
        ...

    @property
    def needs_policy(self) -> bool:
        """Whether it calls a policy."""
        ...

    @property
    def inside(self) -> bool:
        """Whether it runs inside the sandbox, and reaches the policy from there."""
        ...

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Read-only mounts for its sandboxes: its baked program."""
        ...

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        """Prepare the sandbox. A command that fails here raises `SetUpError`."""
        ...

    async def run(self, assignment: Assignment) -> Outcome: ...
