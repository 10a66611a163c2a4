"""Queues: live groups by age, groups with unstarted tickets, and requeued prompts.

All are updated with each event, so that choosing a batch and starting a ticket cost the same
with ten live groups or ten thousand. Requeued prompts: the oldest first, behind some new ones
if the task is to blame.
"""

import bisect
import heapq
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from plimsoll.ledger.books.group import Group, Pending
from plimsoll.ledger.data_order import DataOrder
from plimsoll.trials.verdicts import CAUSES, Cause

if TYPE_CHECKING:
    from plimsoll.ledger.books.books import Books

__all__ = ["ReadyQueue", "RequeueQueue", "UnstartedQueue", "next_requeued", "requeued_prompt"]

_GO_BEFORE = 2
"""New prompts that go before a requeued prompt whose task is to blame: other tasks do not wait, and
their results show whether other tasks fail too."""


class ReadyQueue:
    """Live groups that are not in training, by the number of their head's version."""

    def __init__(self) -> None:
        self.by_head: dict[int, int] = {}
        """The number of groups, ready or not, by head."""
        self.ready = 0
        """The number of ready groups by head."""
        self._where: dict[str, tuple[int, bool] | None] = {}
        """Each group's head, and whether it is ready; None in training."""
        self._ready: dict[int, list[tuple[int, str]]] = {}
        self._unready: dict[int, list[tuple[int, str]]] = {}

    def add(self, group: Group) -> None:
        self._where[group.id] = None
        self.update(group)

    def remove(self, group: Group) -> None:
        self._displace(group, self._where.pop(group.id))

    def update(self, group: Group) -> None:
        """Update a changed group. Groups of evaluations are not in this queue."""
        if group.id not in self._where:
            return
        before = self._where[group.id]
        now = None if group.training else (group.head.number, group.final)
        if now != before:
            self._displace(group, before)
            self._insert(group, now)
            self._where[group.id] = now

    def _insert(self, group: Group, where: tuple[int, bool] | None) -> None:
        if where is None:
            return
        head, ready = where
        self.by_head[head] = self.by_head.get(head, 0) + 1
        buckets = self._ready if ready else self._unready
        bisect.insort(buckets.setdefault(head, []), (group.prompt, group.id))
        self.ready += ready

    def _displace(self, group: Group, where: tuple[int, bool] | None) -> None:
        if where is None:
            return
        head, ready = where
        self.by_head[head] -= 1
        if not self.by_head[head]:
            del self.by_head[head]
        buckets = self._ready if ready else self._unready
        bucket = buckets[head]
        del bucket[bisect.bisect_left(bucket, (group.prompt, group.id))]
        self.ready -= ready
        if not bucket:
            del buckets[head]

    def oldest(self, count: int) -> dict[int, list[str]]:
        """The oldest ready groups by head; those of one head in the order of prompts."""
        found: dict[int, list[str]] = {}
        left = count
        for head in sorted(self._ready):
            if left <= 0:
                break
            found[head] = [name for _, name in self._ready[head][:left]]
            left -= len(found[head])
        return found

    def unready(self, upto: int, most: int) -> list[str]:
        """Running groups with a head up to a number, the oldest first."""
        found: list[str] = []
        for head in sorted(self._unready):
            if head > upto or len(found) >= most:
                break
            found += [name for _, name in self._unready[head][: most - len(found)]]
        return found


class UnstartedQueue:
    """Groups with members that no worker has taken: evaluations first, then the oldest."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._keys: dict[str, tuple[bool, int, int, str]] = {}
        self._order: list[tuple[bool, int, int, str]] = []

    def __iter__(self) -> Iterator[Group]:
        """In order. The queue must not change during the iteration."""
        return (self._groups[key[3]] for key in self._order)

    def update(self, group: Group, *, trains: bool) -> None:
        """Add, move or remove a changed group."""
        key = (trains, group.head.number, group.prompt, group.id) if group.waits else None
        if key == self._keys.get(group.id):
            return
        self.remove(group)
        if key is not None:
            self._groups[group.id], self._keys[group.id] = group, key
            bisect.insort(self._order, key)

    def remove(self, group: Group) -> None:
        if (key := self._keys.pop(group.id, None)) is not None:
            del self._groups[group.id]
            del self._order[bisect.bisect_left(self._order, key)]


class RequeueQueue:
    """The order of the requeued prompts."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        """Entries of (number to wait for, prompt); some are no longer pending."""

    def add(self, pending: Pending) -> None:
        heapq.heappush(self._heap, (pending.after, pending.prompt))

    def first(self, pending: Mapping[int, Pending]) -> Pending | None:
        """The next pending prompt."""
        while self._heap:
            after, prompt = self._heap[0]
            found = pending.get(prompt)
            if found is not None and found.after == after:
                return found
            heapq.heappop(self._heap)
        return None


def requeued_prompt(
    books: "Books", group: Group, cause: Cause, requeues: int, *, counts: bool, anew: bool
) -> Pending:
    """The requeued prompt of a group that is given up; `anew`: sampled with other seeds."""
    yields = counts and CAUSES[cause].against_task
    return Pending(
        prompt=group.prompt,
        task=group.task,
        attempt=group.attempt + 1,
        requeues=requeues,
        resampled=group.resampled + anew,
        after=books.next_prompt + _GO_BEFORE if yields else 0,
    )


def next_requeued(books: "Books", order: DataOrder) -> Pending | None:
    """The requeued prompt that goes before any new one; None if a new one goes first."""
    again = books.next_pending()
    if again is None or again.after <= books.next_prompt:
        return again
    # A new prompt of the same task would most likely fail as well.
    new = order.next_task(books.epoch)
    return again if new is None or new == again.task else None
