"""The watch for rewards that never differ, as those of a grader that always says the same."""

import math
from collections.abc import Sequence

from plimsoll.runs.breaker.watch import Trip, Watch, count_voids
from plimsoll.runs.results import Row

__all__ = ["EqualRewards"]


class EqualRewards(Watch):
    """Trips when so many batches in a row have one and the same reward throughout.

    A batch in which nothing is graded neither counts nor begins the count again. Where rewards of
    the run have differed, one in which all get the best of them does not count: the graders can
    tell, and the policy has learned its tasks.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._reward: float | None = None
        self._equal = 0
        self._trials = 0
        self._worst = math.inf
        self._best = -math.inf

    def batch(self, rows: Sequence[Row]) -> Trip | None:
        rewards = [row.reward for row in rows if row.reward is not None]
        if not rewards:
            return None
        low, high = min(rewards), max(rewards)
        self._worst, self._best = min(self._worst, low), max(self._best, high)
        if low != high or low == self._best > self._worst:
            self._reward, self._equal, self._trials = None, 0, 0
            return None
        if low != self._reward:
            self._reward, self._equal, self._trials = low, 0, 0
        self._equal += 1
        self._trials += len(rewards)
        if self._equal < self._batches:
            return None
        return Trip(
            rule="equal-rewards",
            said=(
                f"all {self._trials:,} rewards of the last {self._equal} batches are {low:g} "
                f"(limit {self._batches - 1} batches)"
            ),
            voids=count_voids(rows),
            example=next(row for row in rows if row.reward is not None),
        )
