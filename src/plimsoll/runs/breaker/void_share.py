"""The watch for a batch that is mostly void."""

from collections.abc import Sequence

from plimsoll.runs.breaker.watch import Trip, Watch, count_voids
from plimsoll.runs.results import Row

__all__ = ["VoidShare"]


class VoidShare(Watch):
    """Trips when more of a full batch is void than may be."""

    def __init__(self, limit: float) -> None:
        self._limit = limit

    def batch(self, rows: Sequence[Row]) -> Trip | None:
        void = [row for row in rows if row.cause is not None]
        if len(void) <= self._limit * len(rows):
            return None
        voids = count_voids(void)
        most = voids[0]
        return Trip(
            rule="void-share",
            said=f"{len(void)} of the last {len(rows)} trials are void (limit {self._limit:.0%})",
            voids=voids,
            example=next(row for row in void if row.reason == most.reason),
        )
