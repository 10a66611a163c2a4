"""Prompts that come again: the oldest first, behind some new ones where the task is to blame."""

import heapq
from collections.abc import Mapping
from typing import TYPE_CHECKING

from plimsoll.ledger.group import Group, Pending
from plimsoll.ledger.order import DataOrder
from plimsoll.trials.verdicts import CAUSES, Cause

if TYPE_CHECKING:
    from plimsoll.ledger.books import Books

__all__ = ["AgainQueue", "comes_again", "comes_now"]

_GO_BEFORE = 2
"""So many new prompts go before one whose task is to blame: the others do not wait for it, and
show whether it is the only one."""


class AgainQueue:
    """The order of the prompts that come again."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        """What each comes after and its number; some are pending no more."""

    def add(self, pending: Pending) -> None:
        heapq.heappush(self._heap, (pending.after, pending.prompt))

    def first(self, pending: Mapping[int, Pending]) -> Pending | None:
        """The next of those that are pending."""
        while self._heap:
            after, prompt = self._heap[0]
            found = pending.get(prompt)
            if found is not None and found.after == after:
                return found
            heapq.heappop(self._heap)
        return None


def comes_again(
    books: "Books", group: Group, cause: Cause, requeues: int, *, counts: bool, anew: bool
) -> Pending:
    """The prompt of a group that is given up; `anew`: it is sampled with other seeds."""
    yields = counts and CAUSES[cause].against_task
    return Pending(
        prompt=group.prompt,
        task=group.task,
        attempt=group.attempt + 1,
        requeues=requeues,
        resampled=group.resampled + anew,
        after=books.next_prompt + _GO_BEFORE if yields else 0,
    )


def comes_now(books: "Books", order: DataOrder) -> Pending | None:
    """The prompt that comes again before any new one; None where a new one goes first."""
    again = books.next_pending()
    if again is None or again.after <= books.next_prompt:
        return again
    # A new one of the same task would only be tried in vain beside it.
    new = order.next_task(books.epoch)
    return again if new is None or new == again.task else None
