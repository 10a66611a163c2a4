"""The distribution of announced orders over workers, at most one worker's slots to each.

The first worker with a free slot cannot be predicted. So counts are distributed, not tickets, and
a share stays with its worker as long as its orders are still due: moving it would make one worker
close a sandbox that another starts.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from plimsoll.workers.messages import Coming, Kind

__all__ = ["Outlook"]


class Outlook:
    """Bookkeeping only: its owner sends the messages."""

    def __init__(self, most: int) -> None:
        self._most = most
        """Orders announced to one worker, at most."""
        self._shares: dict[str, Counter[Kind]] = {}
        self._totals = Counter[str]()
        """Orders in each share."""
        self._dealt = Counter[Kind]()
        """Orders of each kind in all shares."""

    def expecting(self, kind: Kind) -> set[str]:
        """The workers to which an order of this kind was announced."""
        if not self._dealt[kind]:
            return set()
        return {worker for worker, share in self._shares.items() if share[kind]}

    def given(self, worker: str, kind: Kind) -> None:
        """Record that a worker was given an order. An announced one, it counts down by itself."""
        share = self._shares.get(worker)
        if share is not None and share[kind]:
            self._change(worker, kind, -1)

    def deal(
        self, kinds: Iterable[Kind], workers: Sequence[str]
    ) -> Mapping[str, tuple[Coming, ...]]:
        """Distribute the next orders, in order. Returns the shares that have changed."""
        wanted = Counter(kinds)
        # A worker that takes no more orders keeps no sandbox ready.
        changed = self._dismiss(self._shares.keys() - set(workers))
        self._shares = {worker: self._shares.get(worker, Counter[Kind]()) for worker in workers}
        changed |= self._take(wanted)
        changed |= self._add(wanted)
        shares = ((worker, self._shares.get(worker, Counter[Kind]())) for worker in changed)
        return {
            worker: tuple(Coming(kind, share[kind]) for kind in wanted if share[kind])
            for worker, share in shares
        }

    def _dismiss(self, workers: Iterable[str]) -> set[str]:
        """Drop the shares of workers that take no more orders. Returns those that had any."""
        had: set[str] = set()
        for worker in workers:
            share = self._shares.pop(worker)
            self._dealt -= share
            if self._totals.pop(worker, 0):
                had.add(worker)
        return had

    def _take(self, wanted: Counter[Kind]) -> set[str]:
        """Withdraw orders that are no longer due, from the workers with the largest shares."""
        changed: set[str] = set()
        for kind, count in list(self._dealt.items()):
            for _ in range(count - wanted[kind]):
                having = (worker for worker, share in self._shares.items() if share[kind])
                worker = max(having, key=self._totals.__getitem__)
                self._change(worker, kind, -1)
                changed.add(worker)
        return changed

    def _add(self, wanted: Counter[Kind]) -> set[str]:
        """Add orders that were not announced yet, to the workers with the smallest shares."""
        changed: set[str] = set()
        missing = {kind: more for kind, n in wanted.items() if (more := n - self._dealt[kind]) > 0}
        if not missing:
            return changed
        least = [(self._totals[w], place, w) for place, w in enumerate(self._shares)]
        heapq.heapify(least)
        for kind, count in missing.items():
            for _ in range(count):
                if not least or least[0][0] >= self._most:
                    return changed
                total, place, worker = least[0]
                heapq.heapreplace(least, (total + 1, place, worker))
                self._change(worker, kind, +1)
                changed.add(worker)
        return changed

    def _change(self, worker: str, kind: Kind, by: int) -> None:
        for counts in (self._shares[worker], self._dealt):
            counts[kind] += by
            if not counts[kind]:
                del counts[kind]
        self._totals[worker] += by
