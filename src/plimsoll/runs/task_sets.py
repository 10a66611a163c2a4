"""The tasks of a run: selection from a folder, admission by their validation, and canaries.

Invalid tasks are reported; the others run only on request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from plimsoll.core.errors import UsageError
from plimsoll.runs.breaker.canaries import DEFAULT_EVERY, ENOUGH_TASKS, Canaries
from plimsoll.runs.validation.admission import (
    AdmissionPolicy,
    ValidationState,
    ValidationStatus,
    admit,
)
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
    """The selected tasks, and the problems of invalid ones."""

    tasks: tuple[Task, ...]
    problems: tuple[str, ...]
    """The problems of tasks that were left out, one line each."""
    unknown_keys: tuple[UnknownKey, ...]


def select_tasks(
    path: Path, *, pattern: str | None, skip_invalid: bool, remedy: str = "--skip-invalid runs"
) -> Selection:
    """Load the tasks at `path` whose name matches. Raises for an invalid task unless skipped.

    `remedy` is the advice for running the others.
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
    """Tasks that the user named, and the location of their validation."""

    tasks: tuple[Task, ...]
    path: Path
    backend: str
    assets: str
    """The key of the assets that they run with; empty without any."""
    validation: Path | None = None
    """The folder of the validation, if not beside the tasks."""

    def admit(
        self, policy: AdmissionPolicy, validate: str
    ) -> tuple[tuple[Task, ...], dict[str, str]]:
        """The tasks that may run, and the reasons for the others. Reads records only if required.

        `validate` is the command to suggest.
        """
        if not (policy.require_validation or policy.skip_quarantined):
            return self.tasks, {}
        admitted = admit(self.statuses(), policy, backend=self.backend, validate=validate)
        return tuple(t for t in self.tasks if t.name in admitted.tasks), admitted.left_out

    def statuses(self) -> dict[str, ValidationStatus]:
        """The status of each task with its current content."""
        records = self._load()
        return {
            task.name: records.status(task.path, self.backend, self.assets) for task in self.tasks
        }

    def canaries(self, tasks: Sequence[Task], every: int | None, trials: int) -> Canaries | None:
        """The canaries of a run with this number of trials; None if it is too short for any."""
        if every is None:
            every = DEFAULT_EVERY if trials >= DEFAULT_EVERY else 0
        if every == 0:
            return None
        records = self._load()
        # A sample across the set: the status of every task would require reading all of them.
        sample = tasks[:: max(1, len(tasks) // ENOUGH_TASKS)]
        valid = (
            task.name
            for task in sample
            if records.status(task.path, self.backend, self.assets).state is ValidationState.VALID
        )
        failing = (task.name for task in tasks if records.failed(task.path, self.backend))
        return Canaries.of(every, valid, failing)

    def _load(self) -> TaskRecords:
        return TaskRecords.load(RecordFolder.of(self.path, self.validation))


MOST_LEFT_OUT = 0.5
"""The largest share of tasks that a run may leave out after validating them."""
_SHOWN = 10
_REMEDY = "move invalid tasks out of the folder to run"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """The tasks of one folder. Empty without a folder."""

    candidates: Candidates | None = None
    tasks: Mapping[str, Task] = field(default_factory=dict[str, Task])
    """All tasks of the folder: live groups of a task that is now left out still finish."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tasks that do not run, with the reason."""
    unknown_keys: tuple[UnknownKey, ...] = ()

    @classmethod
    def load(cls, path: str, backend: str, assets: str, *, key: str) -> "TaskSet":
        """Load all tasks of a folder, regardless of their status. Raises if one is invalid.

        `key` is the config key of the folder.
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
        """Leave out the tasks that may not run, by their current status.

        `validate` is the command to suggest.
        """
        if self.candidates is None:
            return self
        _, left_out = self.candidates.admit(policy, validate)
        return replace(self, left_out=left_out)

    @property
    def admitted(self) -> dict[str, Task]:
        """The tasks that run, by name."""
        return {name: task for name, task in self.tasks.items() if name not in self.left_out}

    def unknown(self) -> tuple[Task, ...]:
        """Tasks without a validation of their current content."""
        if self.candidates is None:
            return ()
        statuses = self.candidates.statuses()
        current = (ValidationState.VALID, ValidationState.QUARANTINED)
        return tuple(t for name, t in self.tasks.items() if statuses[name].state not in current)


def check_left_out(tasks: TaskSet, backend: str) -> None:
    """Refuse a set with too many tasks that cannot be graded: they probably share a fault."""
    out = tasks.left_out
    if len(out) <= MOST_LEFT_OUT * len(tasks.tasks) or tasks.candidates is None:
        return
    lines = [f"  {name}: {why}" for name, why in list(out.items())[:_SHOWN]]
    more = [f"  and {len(out) - _SHOWN:,} more"] if len(out) > _SHOWN else []
    raise UsageError(
        f"nothing was run: {len(out):,} of {len(tasks.tasks):,} tasks in {tasks.candidates.path} "
        f"cannot be graded on the backend {backend} (limit {MOST_LEFT_OUT:.0%})\n"
        + "\n".join([*lines, *more])
        + "\nfix them, or run the others without [run] validate"
    )


def linted(tasks: TaskSet) -> TaskSet:
    """Add to each reason the lint rule that explains it, if there is one."""
    # Imported here: only a run that validates its tasks needs the linter.
    from plimsoll.tasks.lint.linter import lint_task
    from plimsoll.tasks.lint.rule import Severity

    explained: dict[str, str] = {}
    for name, why in tasks.left_out.items():
        found = lint_task(tasks.tasks[name])
        rules = [finding.rule for finding in found if finding.severity is Severity.ERROR]
        explained[name] = f"{why} → plimsoll lint, rule {rules[0]}" if rules else why
    return replace(tasks, left_out=explained)
