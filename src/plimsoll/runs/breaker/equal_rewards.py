"""The watch for rewards that never differ, as from a grader with a constant result."""

import math
from collections.abc import Sequence

from plimsoll.runs.breaker.watch import Trip, Watch, count_voids
from plimsoll.runs.results import Row

__all__ = ["EqualRewards"]


class EqualRewards(Watch):
    """Trips when a number of batches in a row all have one and the same reward.

    A batch without a graded trial neither counts nor resets the count. If rewards of the run have
    differed, a batch in which all trials get the best reward resets it: the graders discriminate,
    and the policy has learned its tasks.
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
