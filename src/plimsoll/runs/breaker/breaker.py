"""The breaker: passes each finished trial to every watch. The first trip counts."""

from collections.abc import Iterable, Sequence

from plimsoll.runs.breaker.bugs import Bugs
from plimsoll.runs.breaker.canary_failed import CanaryFailed
from plimsoll.runs.breaker.dead_start import DeadStart
from plimsoll.runs.breaker.equal_rewards import EqualRewards
from plimsoll.runs.breaker.fallen_tasks import FallenTasks
from plimsoll.runs.breaker.flat_groups import FlatGroups
from plimsoll.runs.breaker.policy import Policy
from plimsoll.runs.breaker.void_share import VoidShare
from plimsoll.runs.breaker.watch import CanaryResult, Trip, Watch
from plimsoll.runs.results import Row

__all__ = ["Breaker", "make_watches"]


def make_watches(policy: Policy) -> tuple[Watch, ...]:
    """The watches of a run. If two trip at once, the earlier one is more specific."""
    watches: list[Watch] = [
        Bugs(),
        DeadStart(policy.start, policy.enough_tasks),
        FallenTasks(),
        CanaryFailed(),
        VoidShare(policy.void_share, policy.enough_tasks),
    ]
    if not policy.expects_equal:
        watches.append(EqualRewards(policy.equal_batches))
        if policy.group > 1:
            watches.append(
                FlatGroups(group=policy.group, share=policy.flat_share, batches=policy.flat_batches)
            )
    return tuple(watches)


class Breaker:
    """Watches a run. `trip` is set once and stays; `tripped`: the run must stop."""

    def __init__(self, policy: Policy, watches: Sequence[Watch] | None = None) -> None:
        self.policy = policy
        self.trip: Trip | None = None
        self._watches = make_watches(policy) if watches is None else watches
        self._batch: list[Row] = []

    @property
    def tripped(self) -> bool:
        return self.trip is not None and self.policy.stops

    def trial(self, row: Row) -> None:
        """Record a finished trial. Canaries are not trials."""
        self._note(watch.trial(row) for watch in self._watches)
        self._batch.append(row)
        if len(self._batch) == self.policy.batch:
            full, self._batch = self._batch, []
            self._note(watch.batch(full) for watch in self._watches)

    def canary(self, result: CanaryResult) -> None:
        """Record a finished canary."""
        self._note(watch.canary(result) for watch in self._watches)

    def _note(self, trips: Iterable[Trip | None]) -> None:
        # All watches see every event, even after a trip: their state must stay current.
        first = next(iter([trip for trip in trips if trip is not None]), None)
        self.trip = self.trip or first
