"""The watch for groups without variance: nothing can be learned from them."""

import math
from collections import deque
from collections.abc import Sequence

from plimsoll.runs.breaker.watch import Trip, Watch
from plimsoll.runs.results import Row

__all__ = ["FlatGroups"]

_FEWEST = 16
"""The least number of groups to judge, regardless of the number of batches."""


class FlatGroups(Watch):
    """Trips when nearly every group of the last batches has no variance.

    Only finished groups with at least two graded members count: others cannot vary. Once a group
    had variance, groups whose members all get the best reward of the run do not count as flat: the
    graders discriminate, and the policy has learned these tasks.
    """

    def __init__(self, *, group: int, share: float, batches: int) -> None:
        self._group = group
        self._share = share
        self._batches = batches
        self._open: dict[str, list[float | None]] = {}
        self._flat: list[bool] = []
        self._window: deque[tuple[int, int]] = deque()
        """For each batch with a finished group: the number of flat groups and of all groups."""
        self._example: Row | None = None
        self._best = -math.inf
        self._varied = False

    def trial(self, row: Row) -> Trip | None:
        rewards = self._open.setdefault(row.task, [])
        rewards.append(row.reward)
        if len(rewards) == self._group:
            graded = [reward for reward in self._open.pop(row.task) if reward is not None]
            if len(graded) > 1:
                self._take(min(graded), max(graded), row)
        return None

    def _take(self, low: float, high: float, row: Row) -> None:
        self._varied |= low != high
        self._best = max(self._best, high)
        is_learned = self._varied and low == self._best
        is_flat = low == high and not is_learned
        self._flat.append(is_flat)
        self._example = row if is_flat else self._example

    def batch(self, rows: Sequence[Row]) -> Trip | None:
        del rows
        if not self._flat:
            return None
        self._window.append((sum(self._flat), len(self._flat)))
        self._flat = []
        while self._is_enough(len(self._window) - 1, self._groups - self._window[0][1]):
            self._window.popleft()
        flat, groups = sum(one for one, _ in self._window), self._groups
        if not self._is_enough(len(self._window), groups) or flat < self._share * groups:
            return None
        return Trip(
            rule="flat-groups",
            said=(
                f"{flat} of {groups} groups in the last {len(self._window)} batches have no "
                f"variance ({flat / groups:.0%}, limit {self._share:.0%})"
            ),
            example=self._example,
        )

    @property
    def _groups(self) -> int:
        return sum(groups for _, groups in self._window)

    def _is_enough(self, batches: int, groups: int) -> bool:
        return batches >= self._batches and groups >= _FEWEST
