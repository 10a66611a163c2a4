"""The watches of the breaker: each looks at finished trials for one sign of a broken run."""

import math
from collections import Counter, deque
from collections.abc import Sequence

from plimsoll.runs.breaker.watch import CanaryResult, Trip, VoidCount, Watch, count_voids
from plimsoll.runs.files.results import Row
from plimsoll.trials.verdicts import CAUSES, Cause

__all__ = [
    "Bugs",
    "CanaryFailed",
    "DeadStart",
    "EqualRewards",
    "FlatGroups",
    "RewardCollapse",
    "VoidShare",
]

_FEWEST_TASKS = 8
"""The least number of recent tasks to judge: a smaller batch is judged with earlier tasks."""


class VoidShare(Watch):
    """Trips when the void share of a full batch exceeds the limit.

    A task that is to blame for its voids is retried until it is excluded, and can fill batches
    by itself. Its voids count only if the share of broken tasks exceeds the limit too.
    """

    def __init__(self, limit: float, enough_tasks: int = 1) -> None:
        self._limit = limit
        self._enough_tasks = enough_tasks
        self._is_broken: dict[str, bool] = {}
        """The recent tasks, the latest at the end."""

    def batch(self, rows: Sequence[Row]) -> Trip | None:
        self._judge_tasks(rows)
        void = [row for row in rows if row.cause is not None]
        most = self._limit * len(rows)
        not_by_task = sum(not _is_against_task(row) for row in void)
        if len(void) <= most or (not_by_task <= most and not self._are_tasks_broken()):
            return None
        voids = count_voids(void)
        return Trip(
            rule="void-share",
            message=(
                f"{len(void)} of the last {len(rows)} trials are void (limit {self._limit:.0%})"
            ),
            voids=voids,
            example=next(row for row in void if row.reason == voids[0].reason),
        )

    def _judge_tasks(self, rows: Sequence[Row]) -> None:
        """Update the broken tasks: those with more void trials by their own fault than graded
        ones."""
        against: Counter[str] = Counter()
        for row in rows:
            if row.cause is None or _is_against_task(row):
                against[row.task] += -1 if row.cause is None else 1
        for task, balance in against.items():
            self._is_broken.pop(task, None)
            self._is_broken[task] = balance > 0
        for task in list(self._is_broken)[: -max(_FEWEST_TASKS, len(against))]:
            del self._is_broken[task]

    def _are_tasks_broken(self) -> bool:
        broken = sum(self._is_broken.values())
        return broken >= self._enough_tasks and broken > self._limit * len(self._is_broken)


def _is_against_task(row: Row) -> bool:
    return row.cause is not None and CAUSES[row.cause].against_task


class Bugs(Watch):
    """Trips at the first void trial whose cause stops a run."""

    def trial(self, row: Row) -> Trip | None:
        if row.cause is None or not CAUSES[row.cause].stops_run:
            return None
        rule = CAUSES[row.cause]
        return Trip(
            rule="bug",
            message=f"{row.task}.{row.attempt} is void: {row.cause}: {rule.meaning} (limit 0)",
            voids=count_voids((row,)),
            example=row,
            notes=(rule.remedy,),
        )


class CanaryFailed(Watch):
    """Trips at the first canary that is not graded at its task's maximum."""

    def canary(self, result: CanaryResult) -> Trip | None:
        if result.good:
            return None
        row = result.row
        return Trip(
            rule="canary",
            message=f"the canary {row.task}.{row.attempt} is {result.outcome} (limit 0 failures)",
            voids=count_voids((row,)),
            example=row,
            notes=(f"{result.voided} trials since the last good canary are void",),
        )


class DeadStart(Watch):
    """Trips when the first trials are all void, and either no task is to blame or all share
    one reason. Tasks broken in different ways predict nothing about the next one, nor does a single
    task however often it is retried: the watch continues until enough tasks share the reason."""

    def __init__(self, enough: int, enough_tasks: int = 1) -> None:
        self._enough = enough
        self._enough_tasks = enough_tasks
        self._voids: Counter[tuple[Cause, str]] = Counter()
        """Causes and reasons so far; a single one if tasks are to blame."""
        self._tasks: set[str] = set()
        self._first: Row | None = None
        self._over = False

    def trial(self, row: Row) -> Trip | None:
        if self._over:
            return None
        if row.cause is None:
            self._over = True
            return None
        self._first = self._first or row
        self._tasks.add(row.task)
        self._voids[row.cause, row.reason or ""] += 1
        self._over = not self._may_trip()
        if self._over or not self._is_enough():
            return None
        self._over = True
        return Trip(
            rule="dead-start",
            message=self._message(),
            voids=tuple(
                VoidCount(cause.value, reason, count)
                for (cause, reason), count in self._voids.most_common()
            ),
            example=self._first,
        )

    def _may_trip(self) -> bool:
        return len(self._voids) == 1 or self._no_task_to_blame()

    def _is_enough(self) -> bool:
        are_more = len(self._tasks) >= self._enough_tasks or self._no_task_to_blame()
        return are_more and self._voids.total() >= self._enough

    def _no_task_to_blame(self) -> bool:
        return not any(CAUSES[cause].against_task for cause, _ in self._voids)

    def _message(self) -> str:
        first = f"the first {self._voids.total()} trials are all void (limit {self._enough - 1})"
        if len(self._voids) == 1:
            return f"{first}, all for the same reason"
        causes: Counter[str] = Counter()
        for (cause, _), count in self._voids.items():
            causes[cause.value] += count
        counts = ", ".join(f"{cause} {count}" for cause, count in causes.items())
        return f"{first}, and no task is to blame ({counts})"


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
            message=(
                f"all {self._trials:,} rewards of the last {self._equal} batches are {low:g} "
                f"(limit {self._batches - 1} batches)"
            ),
            voids=count_voids(rows),
            example=next(row for row in rows if row.reward is not None),
        )


_ZEROS = 3
"""The number of zeros in a row, after a reward above 0, that count as a fall."""
_SHOWN = 5


class RewardCollapse(Watch):
    """Trips when a canary fails while tasks that had rewards above 0 get only zeros.

    Either alone is weak evidence: a policy may get worse, and a single canary may fail by chance.
    """

    def __init__(self) -> None:
        self._zeros: dict[str, int] = {}
        """Zeros in a row of each task that ever had a reward above 0."""
        self._last: dict[str, Row] = {}

    def trial(self, row: Row) -> Trip | None:
        if row.reward is None:
            return None
        if row.reward > 0.0:
            self._zeros[row.task] = 0
            self._last.pop(row.task, None)
        elif row.task in self._zeros:
            self._zeros[row.task] += 1
            self._last[row.task] = row
        return None

    def canary(self, result: CanaryResult) -> Trip | None:
        collapsed = {task: zeros for task, zeros in self._zeros.items() if zeros >= _ZEROS}
        if result.good or not collapsed:
            return None
        worst = sorted(collapsed, key=lambda task: -collapsed[task])
        named = ", ".join(f"{task} ({collapsed[task]} zeros in a row)" for task in worst[:_SHOWN])
        more = f" and {len(worst) - _SHOWN} more" if len(worst) > _SHOWN else ""
        return Trip(
            rule="fallen-tasks",
            message=(
                f"{len(collapsed)} solvable task(s) fell to reward 0 while canaries fail "
                f"(limit {_ZEROS - 1} zeros in a row)"
            ),
            example=self._last[worst[0]],
            notes=(
                f"fell to 0: {named}{more}",
                f"canary {result.row.task}.{result.row.attempt}: {result.outcome}",
                f"{result.voided} trials since the last good canary are void",
            ),
        )


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
            message=(
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
