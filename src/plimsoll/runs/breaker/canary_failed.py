"""The watch for failed canaries: a solved task that is no longer graded at its maximum."""

from plimsoll.runs.breaker.watch import CanaryResult, Trip, Watch, count_voids

__all__ = ["CanaryFailed"]


class CanaryFailed(Watch):
    """Trips at the first canary that is not graded at its task's maximum."""

    def canary(self, result: CanaryResult) -> Trip | None:
        if result.good:
            return None
        row = result.row
        return Trip(
            rule="canary",
            said=f"the canary {row.task}.{row.attempt} is {result.said} (limit 0 failures)",
            voids=count_voids((row,)),
            example=row,
            canary=True,
            notes=(f"{result.voided} trials since the last good canary are void",),
        )
