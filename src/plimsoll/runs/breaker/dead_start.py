"""The watch for a run that never begins: its first trials are all void, and for one reason."""

from collections import Counter

from plimsoll.runs.breaker.watch import Trip, Watch, count_voids
from plimsoll.runs.results import Row
from plimsoll.trials.verdicts import CAUSES

__all__ = ["DeadStart"]


class DeadStart(Watch):
    """Trips when the first trials are all void, and either no task is to blame or all share
    one reason. Different tasks broken in different ways say nothing about the next one.
    """

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._rows: list[Row] = []
        self._over = False

    def trial(self, row: Row) -> Trip | None:
        if self._over:
            return None
        self._rows.append(row)
        if row.cause is None or not self._may_trip():
            self._over = True
        if self._over or len(self._rows) < self._enough:
            return None
        self._over = True
        return Trip(
            rule="dead-start",
            said=self._said(),
            voids=count_voids(self._rows),
            example=self._rows[0],
        )

    def _may_trip(self) -> bool:
        return self._one_reason() or self._nobody_to_blame()

    def _one_reason(self) -> bool:
        return len({(row.cause, row.reason) for row in self._rows}) == 1

    def _nobody_to_blame(self) -> bool:
        return not any(row.cause and CAUSES[row.cause].against_task for row in self._rows)

    def _said(self) -> str:
        first = f"the first {self._enough} trials are all void (limit {self._enough - 1})"
        if self._one_reason():
            return f"{first}, for one and the same reason"
        causes = Counter(row.cause.value for row in self._rows if row.cause)
        counts = ", ".join(f"{cause} {count}" for cause, count in causes.items())
        return f"{first}, and no task is to blame ({counts})"
