"""The oracle: the agent that runs the task's own solution."""

from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.core.errors import SolutionError
from plimsoll.sandboxes.protocol import Mount, Sandbox
from plimsoll.sandboxes.scripts import script_argv
from plimsoll.tasks.task import Task

__all__ = ["Oracle"]

FOLDER = "/solution"


class Oracle:
    """Runs `solution/solve.sh`. If it fails, the task is at fault, not the agent."""

    name = "oracle"
    version = ""
    reference = True
    needs_policy = False
    inside = True
    mounts: tuple[Mount, ...] = ()

    async def set_up(self, task: Task, sandbox: Sandbox) -> None:
        del task, sandbox

    async def run(self, assignment: Assignment) -> Outcome:
        folder = assignment.step.solution_dir
        if folder is None or not (folder / "solve.sh").is_file():
            raise SolutionError("the task has no solution/solve.sh, so the oracle cannot run")
        sandbox = assignment.sandbox
        await sandbox.empty(FOLDER)
        await sandbox.upload(folder, FOLDER)
        done = await sandbox.exec(
            script_argv(folder / "solve.sh", f"{FOLDER}/solve.sh"),
            env=assignment.env,
            user=assignment.user,
            on_output=assignment.on_output,
        )
        if not done.ok:
            raise SolutionError(f"solution/solve.sh {done.complaint()}")
        return Outcome()
