"""The breaker at work in a run with a ledger: its watches on every trial, its canaries woven in.

A failed canary makes void what finished since the last good one, as far as it is not trained
on yet, and all that finishes until one is good again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.breaker.watch import CanaryResult
from plimsoll.runs.results import Row
from plimsoll.tasks.task import Task
from plimsoll.trials.verdicts import Cause, Void

__all__ = ["UNINFORMATIVE_CAUSES", "BreakerMonitor", "Canary"]

UNINFORMATIVE_CAUSES = (Cause.LOST, Cause.CANCELLED)
"""What ended them has nothing to do with what they ran. Workers that die again and again are the
supervisor's affair."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A canary that runs."""

    task: str
    number: int
    mark: int
    """How far it vouches where it is good."""


class BreakerMonitor:
    """What the breaker knows of a run. Grows with nothing but the tasks."""

    def __init__(
        self, breaker: Breaker, canaries: Canaries | None, tasks: Mapping[str, Task], number: int
    ) -> None:
        self.breaker = breaker
        self.canaries = canaries
        self.doubt: Void | None = None
        """What makes trials void that finish after a failed canary."""
        self._tasks = tasks
        self._next = number

    def trial_started(self) -> None:
        if self.canaries is not None:
            self.canaries.trial_started()

    def trial_finished(self, row: Row) -> None:
        if row.cause in UNINFORMATIVE_CAUSES:
            return
        if self.canaries is not None:
            self.canaries.trial_finished((row.ticket, row.attempt))
            if self.canaries.wants_tasks and is_proof(self._tasks[row.task], row):
                self.canaries.prove(row.task)
        self.breaker.trial(row)

    def due(self) -> Canary | None:
        """The canary that is due now; it counts as started."""
        if self.canaries is None or (task := self.canaries.take()) is None:
            return None
        number, self._next = self._next, self._next + 1
        return Canary(task, number, self.canaries.canary_started())

    def canary_finished(self, canary: Canary, row: Row) -> tuple[str, ...]:
        """A canary has ended; the tickets that are worth nothing because of it."""
        assert self.canaries is not None, "there is no canary without canaries"
        result = CanaryResult(row, self._tasks[row.task].reward_range[1])
        taken: tuple[str, ...] = ()
        if result.good:
            self.canaries.canary_passed(canary.mark)
            self.doubt = None
        else:
            self.doubt = Void(result.cause, f"canary failed after it: {row.task}: {result.said}")
            taken = tuple(ticket for ticket, _ in self.canaries.canary_failed())
            result = CanaryResult(row, result.top, len(taken))
        self.breaker.canary(result)
        return taken


def is_proof(task: Task, row: Row) -> bool:
    """Whether a row proves that the task can be graded at its maximum, and has a solution."""
    if row.reward is None or row.reward < task.reward_range[1]:
        return False
    folders = [step.solution_dir for step in task.steps]
    return all(folder is not None and (folder / "solve.sh").is_file() for folder in folders)
