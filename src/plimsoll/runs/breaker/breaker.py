"""The breaker: each finished trial goes to every watch, and the first trip counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.breaker.rules import (
    Bugs,
    CanaryFailed,
    DeadStart,
    EqualRewards,
    FlatGroups,
    RewardCollapse,
    VoidShare,
)
from plimsoll.runs.breaker.watch import CanaryResult, Trip, Watch
from plimsoll.runs.files.results import Row
from plimsoll.tasks.task import Task
from plimsoll.trials.verdicts import Cause, Void

__all__ = ["UNINFORMATIVE_CAUSES", "Breaker", "BreakerMonitor", "Canary"]

UNINFORMATIVE_CAUSES = (Cause.LOST, Cause.CANCELLED)
"""Causes unrelated to the content of a trial: the breaker ignores them. The supervisor handles
workers that die repeatedly."""


def _make_watches(limits: BreakerLimits) -> tuple[Watch, ...]:
    """The watches of a run. If two trip at once, the earlier one is more specific."""
    watches: list[Watch] = [
        Bugs(),
        DeadStart(limits.start, limits.enough_tasks),
        RewardCollapse(),
        CanaryFailed(),
        VoidShare(limits.void_share, limits.enough_tasks),
    ]
    if not limits.expects_equal:
        watches.append(EqualRewards(limits.equal_batches))
        if limits.group > 1:
            watches.append(
                FlatGroups(group=limits.group, share=limits.flat_share, batches=limits.flat_batches)
            )
    return tuple(watches)


class Breaker:
    """Watches a run. `trip` is set once and stays; `tripped`: the run must stop."""

    def __init__(self, limits: BreakerLimits, watches: Sequence[Watch] | None = None) -> None:
        self.limits = limits
        self.trip: Trip | None = None
        self._watches = _make_watches(limits) if watches is None else watches
        self._batch: list[Row] = []

    @property
    def tripped(self) -> bool:
        return self.trip is not None and self.limits.stops

    def trial(self, row: Row) -> None:
        """Record a finished trial. Canaries are not trials."""
        self._note(watch.trial(row) for watch in self._watches)
        self._batch.append(row)
        if len(self._batch) == self.limits.batch:
            full, self._batch = self._batch, []
            self._note(watch.batch(full) for watch in self._watches)

    def canary(self, result: CanaryResult) -> None:
        """Record a finished canary."""
        self._note(watch.canary(result) for watch in self._watches)

    def _note(self, trips: Iterable[Trip | None]) -> None:
        # All watches see every event, even after a trip: their state must stay current.
        first = next(iter([trip for trip in trips if trip is not None]), None)
        self.trip = self.trip or first


@dataclass(frozen=True, slots=True)
class Canary:
    """A running canary."""

    task: str
    number: int
    mark: int
    """The mark up to which it confirms trials if it is good."""


class BreakerMonitor:
    """Connects the breaker and the canaries to the trials of a run.

    A failed canary voids the trials that finished since the last good one, unless they were trained
    on already, and all trials that finish until a canary is good again. Memory grows only with the
    number of tasks.
    """

    def __init__(
        self, breaker: Breaker, canaries: Canaries | None, tasks: Mapping[str, Task], number: int
    ) -> None:
        self.breaker = breaker
        self.canaries = canaries
        self.doubt: Void | None = None
        """The verdict of trials that finish after a failed canary; None after a good one."""
        self._tasks = tasks
        self._next = number

    def trial_started(self) -> None:
        if self.canaries is not None:
            self.canaries.trial_started()

    def trial_finished(self, row: Row) -> None:
        if row.cause in UNINFORMATIVE_CAUSES:
            return
        if self.canaries is not None:
            self.canaries.trial_finished(row.ticket)
            if self.canaries.wants_tasks and is_proof(self._tasks[row.task], row):
                self.canaries.prove(row.task)
        self.breaker.trial(row)

    def due(self) -> Canary | None:
        """The canary that is due now, or None. It counts as started."""
        if self.canaries is None or (task := self.canaries.take()) is None:
            return None
        number, self._next = self._next, self._next + 1
        return Canary(task, number, self.canaries.canary_started())

    def canary_finished(self, canary: Canary, row: Row) -> tuple[str, ...]:
        """Record a finished canary; returns the tickets that it voids."""
        assert self.canaries is not None, "there is no canary without canaries"
        result = CanaryResult(row, self._tasks[row.task].reward_range[1])
        voided: tuple[str, ...] = ()
        if result.good:
            self.canaries.canary_passed(canary.mark)
            self.doubt = None
        else:
            self.doubt = Void(result.cause, f"canary failed after it: {row.task}: {result.outcome}")
            voided = self.canaries.canary_failed()
            result = CanaryResult(row, result.top, len(voided))
        self.breaker.canary(result)
        return voided


def is_proof(task: Task, row: Row) -> bool:
    """True if a row proves that the task can be graded at its maximum, and the task has a
    solution."""
    if row.reward is None or row.reward < task.reward_range[1]:
        return False
    folders = [step.solution_dir for step in task.steps]
    return all(folder is not None and (folder / "solve.sh").is_file() for folder in folders)
