"""Groups by age: how many are live at each version, and which of them are ready.

Kept up with each event, so that choosing a batch costs the same with ten live groups or ten
thousand.
"""

import bisect

from plimsoll.ledger.group import Group

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Live groups that are not in training, by the number of their head's version."""

    def __init__(self) -> None:
        self.by_head: dict[int, int] = {}
        """How many groups, ready or not, have a head of this number."""
        self.ready = 0
        """How many are ready."""
        self._where: dict[str, tuple[int, bool] | None] = {}
        """Each group's head and whether it is ready, as it stands here; None in training."""
        self._ready: dict[int, list[tuple[int, str]]] = {}
        self._unready: dict[int, dict[str, int]] = {}

    def add(self, group: Group) -> None:
        self._where[group.id] = None
        self.update(group)

    def remove(self, group: Group) -> None:
        self._displace(group, self._where.pop(group.id))

    def update(self, group: Group) -> None:
        """A group has changed. One that is not kept here, an evaluation's, is left be."""
        if group.id not in self._where:
            return
        before = self._where[group.id]
        now = None if group.training else (group.head.number, group.final)
        if now != before:
            self._displace(group, before)
            self._place(group, now)
            self._where[group.id] = now

    def _place(self, group: Group, where: tuple[int, bool] | None) -> None:
        if where is None:
            return
        head, ready = where
        self.by_head[head] = self.by_head.get(head, 0) + 1
        if ready:
            bisect.insort(self._ready.setdefault(head, []), (group.prompt, group.id))
            self.ready += 1
        else:
            self._unready.setdefault(head, {})[group.id] = group.prompt

    def _displace(self, group: Group, where: tuple[int, bool] | None) -> None:
        if where is None:
            return
        head, ready = where
        self.by_head[head] -= 1
        if not self.by_head[head]:
            del self.by_head[head]
        if ready:
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

    def oldest(self, count: int) -> dict[int, list[str]]:
        """The ready groups that are oldest, by head, each head's in the order of prompts."""
        found: dict[int, list[str]] = {}
        left = count
        for head in sorted(self._ready):
            if left <= 0:
                break
            found[head] = [name for _, name in self._ready[head][:left]]
            left -= len(found[head])
        return found

    def unready(self, upto: int) -> list[str]:
        """Groups that still run and whose head is not after a number, the oldest first."""
        heads = [head for head in sorted(self._unready) if head <= upto]
        return [
            name
            for head in heads
            for name in sorted(self._unready[head], key=self._unready[head].__getitem__)
        ]
