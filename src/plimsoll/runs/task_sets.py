"""Which tasks a run is about. What is invalid is named; the rest runs only if asked to.

The tasks that a run may use, by what is known of them: who is admitted, who is a canary.

The tasks that a run trains on, or those that it is measured on: who of them runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from plimsoll.core.errors import UsageError
from plimsoll.runs.breaker.admission import (
    AdmissionPolicy,
    Standing,
    ValidationState,
    admit,
)
from plimsoll.runs.breaker.canaries import DEFAULT_EVERY, ENOUGH_TASKS, Canaries
from plimsoll.runs.validation.records import RecordFolder, TaskRecords
from plimsoll.tasks.loader import load_tasks
from plimsoll.tasks.problems import UnknownKey
from plimsoll.tasks.task import Task

__all__ = [
    "MOST_LEFT_OUT",
    "Candidates",
    "Selection",
    "TaskSet",
    "check_left_out",
    "linted",
    "select_tasks",
]


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


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tasks that a person named, and where their validation is looked up."""

    tasks: tuple[Task, ...]
    path: Path
    backend: str
    assets: str
    """The key of the assets that they run with; empty without any."""
    validation: Path | None = None
    """Where the validation is kept, if not beside the tasks."""

    def admit(
        self, policy: AdmissionPolicy, validate: str
    ) -> tuple[tuple[Task, ...], dict[str, str]]:
        """Those that may run, and why the others may not. Asks nothing unless it is told to.

        `validate` is the command that would mend what is wrong.
        """
        if not (policy.require_validation or policy.skip_quarantined):
            return self.tasks, {}
        admitted = admit(self.standings(), policy, backend=self.backend, validate=validate)
        return tuple(t for t in self.tasks if t.name in admitted.tasks), admitted.left_out

    def standings(self) -> dict[str, Standing]:
        """Where each task stands as it is now."""
        known = self._load()
        return {
            task.name: known.standing(task.path, self.backend, self.assets) for task in self.tasks
        }

    def canaries(self, tasks: Sequence[Task], every: int | None, trials: int) -> Canaries | None:
        """The canaries of a run of so many trials, where it is long enough for any."""
        if every is None:
            every = DEFAULT_EVERY if trials >= DEFAULT_EVERY else 0
        if every == 0:
            return None
        known = self._load()
        # A sample from all over the set: to know where each task stands would be to read them all.
        sample = tasks[:: max(1, len(tasks) // ENOUGH_TASKS)]
        valid = (
            task.name
            for task in sample
            if known.standing(task.path, self.backend, self.assets).known is ValidationState.VALID
        )
        failing = (task.name for task in tasks if known.failed(task.path, self.backend))
        return Canaries.of(every, valid, failing)

    def _load(self) -> TaskRecords:
        return TaskRecords.load(RecordFolder.of(self.path, self.validation))


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
        known = (ValidationState.VALID, ValidationState.QUARANTINED)
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
    # Imported here: only a run that validates its tasks needs the linter.
    from plimsoll.tasks.lint.linter import lint_task
    from plimsoll.tasks.lint.rule import Severity

    told: dict[str, str] = {}
    for name, why in tasks.left_out.items():
        found = lint_task(tasks.tasks[name])
        rules = [finding.rule for finding in found if finding.severity is Severity.ERROR]
        told[name] = f"{why} → plimsoll lint, rule {rules[0]}" if rules else why
    return replace(tasks, left_out=told)
