"""Which clones can be answered by a checkout mounted where they go.

A mount is read-only, so only a folder that the build leaves as it was cloned qualifies. All
others are cloned from the mirror, and can be written as ever.
"""

from pathlib import PurePosixPath

from plimsoll.tasks.lint.build import Run, Stage
from plimsoll.tasks.lint.fetch import Fetch, Kind, Phase
from plimsoll.tasks.lint.fetches import task_builds
from plimsoll.tasks.task import Task

__all__ = ["clone_target", "is_mountable"]

READERS = {
    "", "[", "[[", "apt", "apt-get", "cat", "cd", "echo", "export", "git", "ls", "mkdir", "printf",
    "set", "test", "true",
}  # fmt: skip
"""Commands that leave a cloned folder as it is."""


def clone_target(fetch: Fetch) -> str | None:
    """The absolute path that a clone goes to, where it is known."""
    target = (fetch.target or "").rstrip("/")
    known = target.startswith("/") and not any(sign in target for sign in "$*`~")
    return target if fetch.kind is Kind.GIT and known else None


def is_mountable(task: Task, fetch: Fetch) -> bool:
    """Whether the task leaves the folder alone after it has cloned it."""
    target = clone_target(fetch)
    if target is None or fetch.phase not in (Phase.BUILD, Phase.SET_UP):
        return False
    # A folder right below the root is as a rule what the agent works in.
    if len(PurePosixPath(target).parts) < 3 or _near(target, task.environment.workdir or ""):
        return False
    stages = [stage for build in task_builds(task) for stage in build.stages]
    return all(_leaves_alone(stage, fetch, target) for stage in stages)


def _leaves_alone(stage: Stage, fetch: Fetch, target: str) -> bool:
    if _near(target, stage.workdir) or any(_near(target, copy.target) for copy in stage.copies):
        return False
    return all(
        command.unwrapped().name in READERS
        for run in stage.runs
        if _touches(run, fetch, target)
        for command in run.script.commands
    )


def _touches(run: Run, fetch: Fetch, target: str) -> bool:
    words = [word for command in run.script.commands for word in command.args]
    names = (target, *fetch.what)
    return _within(run.cwd, target) or any(name in word for name in names for word in words)


def _near(target: str, path: str) -> bool:
    """One of them is the other, or lies in it; the root and its folders' own names aside."""
    path = path.rstrip("/")
    return _within(path, target) or (path.count("/") > 1 and _within(target, path))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
