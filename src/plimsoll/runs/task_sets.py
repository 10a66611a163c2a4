"""The tasks that a run trains on, or those that it is measured on: who of them runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from plimsoll.core.errors import UsageError
from plimsoll.runs.breaker.admission import AdmissionPolicy, Known
from plimsoll.runs.candidates import Candidates
from plimsoll.runs.selection import select_tasks
from plimsoll.tasks.lint.finding import Severity
from plimsoll.tasks.lint.linter import lint_task
from plimsoll.tasks.problems import UnknownKey
from plimsoll.tasks.task import Task

__all__ = ["MOST_LEFT_OUT", "TaskSet", "check_left_out", "linted"]

MOST_LEFT_OUT = 0.5
"""The largest share of tasks that a run which validates them leaves out by itself."""
_SHOWN = 10
_REMEDY = "take what is not out of the folder to run"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """The tasks of one folder. Without a folder it is empty."""

    candidates: Candidates | None = None
    tasks: Mapping[str, Task] = field(default_factory=dict[str, Task])
    """All that are there: what is under way of one that is left out now comes to its end."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those that do not run, with the reason."""
    unknown_keys: tuple[UnknownKey, ...] = ()

    @classmethod
    def load(cls, path: str, backend: str, assets: str, *, key: str) -> "TaskSet":
        """All of a folder, whatever is known of them. Raises where one is not valid.

        `key` is what names the folder in the config.
        """
        try:
            selection = select_tasks(Path(path), pattern=None, skip_invalid=False, remedy=_REMEDY)
        except UsageError as error:
            raise UsageError(f"{key}: {error}") from error
        return cls(
            candidates=Candidates(selection.tasks, Path(path), backend, assets),
            tasks={task.name: task for task in selection.tasks},
            unknown_keys=selection.unknown_keys,
        )

    def admit(self, policy: AdmissionPolicy, validate: str) -> "TaskSet":
        """With those left out that may not run, by what is known of them now.

        `validate` is the command that would mend what is wrong.
        """
        if self.candidates is None:
            return self
        _, left_out = self.candidates.admit(policy, validate)
        return replace(self, left_out=left_out)

    @property
    def admitted(self) -> dict[str, Task]:
        """Those that run, by name."""
        return {name: task for name, task in self.tasks.items() if name not in self.left_out}

    def unknown(self) -> tuple[Task, ...]:
        """Those that run and of which nobody knows whether they can be graded, as they are."""
        if self.candidates is None:
            return ()
        standings = self.candidates.standings()
        known = (Known.VALID, Known.QUARANTINED)
        return tuple(t for name, t in self.tasks.items() if standings[name].known not in known)


def check_left_out(tasks: TaskSet, backend: str) -> None:
    """Refuse a set most of which cannot be graded: something is wrong with all of it."""
    out = tasks.left_out
    if len(out) <= MOST_LEFT_OUT * len(tasks.tasks) or tasks.candidates is None:
        return
    lines = [f"  {name}: {why}" for name, why in list(out.items())[:_SHOWN]]
    more = [f"  and {len(out) - _SHOWN:,} more"] if len(out) > _SHOWN else []
    raise UsageError(
        f"nothing was run: {len(out):,} of {len(tasks.tasks):,} tasks in {tasks.candidates.path} "
        f"cannot be graded on the backend {backend} (limit {MOST_LEFT_OUT:.0%})\n"
        + "\n".join([*lines, *more])
        + "\nmend them, or run the others without [run] validate"
    )


def linted(tasks: TaskSet) -> TaskSet:
    """With the rule of lint that tells what is wrong with a task, where there is one."""
    told: dict[str, str] = {}
    for name, why in tasks.left_out.items():
        found = lint_task(tasks.tasks[name])
        rules = [finding.rule for finding in found if finding.severity is Severity.ERROR]
        told[name] = f"{why} → plimsoll lint, rule {rules[0]}" if rules else why
    return replace(tasks, left_out=told)
