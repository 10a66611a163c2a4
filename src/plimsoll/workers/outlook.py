"""Which worker is told of which orders that come: each of as many as it runs at once, at most.

Nobody can tell which worker will have room first. So it is counts that are dealt out, not
tickets, and what was dealt stays where it is as long as it is coming: to move it would have one
worker close what another starts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from plimsoll.workers.place import Coming, Kind

__all__ = ["Outlook"]


class Outlook:
    """Books only: whoever has it tells the workers."""

    def __init__(self, most: int) -> None:
        self._most = most
        """Orders that one worker is told of."""
        self._shares: dict[str, Counter[Kind]] = {}

    def expecting(self, kind: Kind) -> set[str]:
        """The workers that were told of such an order."""
        return {worker for worker, share in self._shares.items() if share[kind]}

    def given(self, worker: str, kind: Kind) -> None:
        """A worker was given an order. Where it was told of one, it counts that down by itself."""
        share = self._shares.get(worker)
        if share is not None and share[kind]:
            share[kind] -= 1

    def deal(
        self, kinds: Iterable[Kind], workers: Sequence[str]
    ) -> Mapping[str, tuple[Coming, ...]]:
        """Deal out what comes, the first one first; answers the shares that have changed."""
        before = self._shares
        self._shares = {worker: Counter(before.get(worker, ())) for worker in workers}
        wanted = Counter(kinds)
        self._take(wanted)
        self._add(wanted)
        # One that is given no more orders is to keep nothing ready for any.
        shares = {worker: Counter[Kind]() for worker in before} | self._shares
        return {
            worker: tuple(Coming(kind, share[kind]) for kind in wanted if share[kind])
            for worker, share in shares.items()
            if +share != +before.get(worker, Counter[Kind]())
        }

    def _take(self, wanted: Counter[Kind]) -> None:
        """Take back what does not come any more, from those that have most."""
        for kind, count in sum(self._shares.values(), Counter[Kind]()).items():
            for _ in range(count - wanted[kind]):
                having = (share for share in self._shares.values() if share[kind])
                max(having, key=_total)[kind] -= 1

    def _add(self, wanted: Counter[Kind]) -> None:
        """Add what nobody was told of, where there is least."""
        dealt = sum(self._shares.values(), Counter[Kind]())
        for kind, count in wanted.items():
            for _ in range(count - dealt[kind]):
                least = min(self._shares.values(), key=_total, default=None)
                if least is None or _total(least) >= self._most:
                    return
                least[kind] += 1


def _total(share: Counter[Kind]) -> int:
    return share.total()
