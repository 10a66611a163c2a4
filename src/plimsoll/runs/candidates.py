"""The tasks that a run may use, by what is known of them: who is admitted, who is a canary."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.runs.breaker.admission import AdmissionPolicy, Known, Standing, admit
from plimsoll.runs.breaker.canaries import DEFAULT_EVERY, ENOUGH_TASKS, Canaries
from plimsoll.runs.validation import Place, Validation
from plimsoll.tasks.task import Task

__all__ = ["Candidates"]


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
            if known.standing(task.path, self.backend, self.assets).known is Known.VALID
        )
        failing = (task.name for task in tasks if known.failed(task.path, self.backend))
        return Canaries.of(every, valid, failing)

    def _load(self) -> Validation:
        return Validation.load(Place.of(self.path, self.validation))
