"""The watch for causes that stop a run at the first occurrence."""

from plimsoll.runs.breaker.watch import Trip, Watch, count_voids
from plimsoll.runs.results import Row
from plimsoll.trials.verdicts import CAUSES

__all__ = ["Bugs"]


class Bugs(Watch):
    """Trips at the first void trial whose cause stops a run."""

    def trial(self, row: Row) -> Trip | None:
        if row.cause is None or not CAUSES[row.cause].stops_run:
            return None
        rule = CAUSES[row.cause]
        return Trip(
            rule="bug",
            said=f"{row.task}.{row.attempt} is void: {row.cause}: {rule.meaning} (limit 0)",
            voids=count_voids((row,)),
            example=row,
            notes=(rule.remedy,),
        )
