"""The watch for a run that never gets going: its first trials are all void for one reason."""

from collections import Counter

from plimsoll.runs.breaker.watch import Trip, VoidCount, Watch
from plimsoll.runs.results import Row
from plimsoll.trials.verdicts import CAUSES, Cause

__all__ = ["DeadStart"]


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
            said=self._said(),
            voids=tuple(
                VoidCount(cause.value, reason, count)
                for (cause, reason), count in self._voids.most_common()
            ),
            example=self._first,
        )

    def _may_trip(self) -> bool:
        return len(self._voids) == 1 or self._nobody_to_blame()

    def _is_enough(self) -> bool:
        are_more = len(self._tasks) >= self._enough_tasks or self._nobody_to_blame()
        return are_more and self._voids.total() >= self._enough

    def _nobody_to_blame(self) -> bool:
        return not any(CAUSES[cause].against_task for cause, _ in self._voids)

    def _said(self) -> str:
        first = f"the first {self._voids.total()} trials are all void (limit {self._enough - 1})"
        if len(self._voids) == 1:
            return f"{first}, all for the same reason"
        causes: Counter[str] = Counter()
        for (cause, _), count in self._voids.items():
            causes[cause.value] += count
        counts = ", ".join(f"{cause} {count}" for cause, count in causes.items())
        return f"{first}, and no task is to blame ({counts})"
