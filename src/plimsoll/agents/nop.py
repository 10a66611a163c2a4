"""The agent that does nothing. Its reward is the reward of a task without any work."""

from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.sandboxes.protocol import Mount, Sandbox
from plimsoll.tasks.task import Task

__all__ = ["Nop"]


class Nop:
    """Ends immediately."""

    name = "nop"
    version = ""
    reference = False
    needs_policy = False
    inside = True
    mounts: tuple[Mount, ...] = ()

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        del task, sandbox

    async def run(self, assignment: Assignment) -> Outcome:
        del assignment
        return Outcome()
