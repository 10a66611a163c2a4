"""The watch for a batch that is mostly void."""

from collections import Counter
from collections.abc import Sequence

from plimsoll.runs.breaker.watch import Trip, Watch, count_voids
from plimsoll.runs.results import Row
from plimsoll.trials.verdicts import CAUSES

__all__ = ["VoidShare"]

_FEWEST_TASKS = 8
"""The least number of recent tasks to judge: a smaller batch is judged with earlier tasks."""


class VoidShare(Watch):
    """Trips when the void share of a full batch exceeds the limit.

    A task that is to blame for its voids is retried until it is quarantined, and can fill batches
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
        nobodys = sum(not _is_against_task(row) for row in void)
        if len(void) <= most or (nobodys <= most and not self._are_tasks_broken()):
            return None
        voids = count_voids(void)
        return Trip(
            rule="void-share",
            said=f"{len(void)} of the last {len(rows)} trials are void (limit {self._limit:.0%})",
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
