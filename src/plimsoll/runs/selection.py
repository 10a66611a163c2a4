"""Which tasks a run is about. What is invalid is named; the rest runs only if asked to."""

from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import UsageError
from plimsoll.tasks.loader import load_tasks
from plimsoll.tasks.problems import UnknownKey
from plimsoll.tasks.task import Task

__all__ = ["Selection", "select_tasks"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The tasks that run, and what is wrong with them and with those that do not."""

    tasks: tuple[Task, ...]
    problems: tuple[str, ...]
    """Why tasks were left out, one line a mistake."""
    unknown_keys: tuple[UnknownKey, ...]


def select_tasks(
    path: Path, *, pattern: str | None, skip_invalid: bool, remedy: str = "--skip-invalid runs"
) -> Selection:
    """Load the tasks at `path` whose name matches. An invalid one is an error unless skipped.

    `remedy` says what would run the others.
    """
    loaded = load_tasks(path, pattern)
    problems = tuple(problem for task in loaded.invalid for problem in task.problems)
    if problems and not (skip_invalid and loaded.tasks):
        refusal = _refusal(len(loaded.tasks), len(loaded.invalid), remedy)
        raise UsageError("\n".join((refusal, *problems)))
    unknown = tuple(key for task in loaded.tasks for key in task.unknown_keys)
    return Selection(loaded.tasks, problems, unknown)


def _refusal(valid: int, invalid: int, remedy: str) -> str:
    if not valid:
        return "nothing was run: no task is valid"
    tasks = "1 task is" if invalid == 1 else f"{invalid:,} tasks are"
    return f"nothing was run: {tasks} not valid; {remedy} the other {valid:,}"
