"""Groups by age: how many are live at each version, and which of them are ready.

Kept up with each event, so that choosing a batch costs the same with ten live groups or ten
thousand.
"""

import bisect
import contextlib
from collections import Counter
from collections.abc import Generator

from plimsoll.ledger.group import Group

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Live groups that are not in training, by the number of their head's version."""

    def __init__(self) -> None:
        self.by_head: Counter[int] = Counter()
        """How many groups, ready or not, have a head of this number."""
        self._known: set[str] = set()
        self._ready: dict[int, list[tuple[int, str]]] = {}
        self._unready: dict[int, dict[str, int]] = {}
        self.ready = 0
        """How many are ready."""

    def add(self, group: Group) -> None:
        self._known.add(group.id)
        self._place(group)

    def remove(self, group: Group) -> None:
        self._known.discard(group.id)
        self._displace(group)

    @contextlib.contextmanager
    def changing(self, group: Group) -> Generator[None, None, None]:
        """Around a change to a group. One that is not kept here, an evaluation's, is left be."""
        if group.id not in self._known:
            yield
            return
        self._displace(group)
        yield
        self._place(group)

    def _place(self, group: Group) -> None:
        if group.training:
            return
        head = group.head.number
        self.by_head[head] += 1
        if group.final:
            bisect.insort(self._ready.setdefault(head, []), (group.prompt, group.id))
            self.ready += 1
        else:
            self._unready.setdefault(head, {})[group.id] = group.prompt

    def _displace(self, group: Group) -> None:
        if group.training:
            return
        head = group.head.number
        self.by_head[head] -= 1
        if not self.by_head[head]:
            del self.by_head[head]
        if group.final:
            bucket = self._ready[head]
            del bucket[bisect.bisect_left(bucket, (group.prompt, group.id))]
            self.ready -= 1
            if not bucket:
                del self._ready[head]
        else:
            waiting = self._unready[head]
            del waiting[group.id]
            if not waiting:
                del self._unready[head]

    def oldest(self, count: int) -> list[str]:
        """The ready groups that are oldest, in order of head and prompt."""
        found: list[str] = []
        for head in sorted(self._ready):
            found += [name for _, name in self._ready[head][: count - len(found)]]
            if len(found) >= count:
                break
        return found

    def unready(self, upto: int) -> list[str]:
        """Groups that still run and whose head is not after a number, the oldest first."""
        heads = [head for head in sorted(self._unready) if head <= upto]
        return [
            name
            for head in heads
            for name in sorted(self._unready[head], key=self._unready[head].__getitem__)
        ]
