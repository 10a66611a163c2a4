"""When an evaluation stops by itself: going on would only make more of nothing."""

from collections import Counter

from plimsoll.runs.results import Row
from plimsoll.trials.verdicts import CAUSES

__all__ = ["Stopping"]

_ENOUGH = 16
"""So many trials from the first, all void for reasons outside the tasks, settle it."""


class Stopping:
    """Watches rows as they come. `reason` is set once, and stays."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._outside: Counter[str] = Counter()
        self._hopeful = False

    def watch(self, row: Row) -> None:
        if self.reason is not None:
            return
        rule = CAUSES[row.cause] if row.cause is not None else None
        if rule is not None and rule.stops_run:
            self.reason = f"{row.task}.{row.attempt} is void: {row.cause}: {rule.meaning}"
        if rule is None or rule.against_task:
            self._hopeful = True
        if self._hopeful or row.cause is None:
            return
        self._outside[row.cause.value] += 1
        if self._outside.total() >= _ENOUGH:
            causes = ", ".join(f"{cause} {count}" for cause, count in self._outside.items())
            self.reason = (
                f"the first {_ENOUGH} trials are all void and no task is to blame ({causes})"
            )
