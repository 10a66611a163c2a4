"""Batching: the groups of the next batch, and those to wait for or to give up.

Let η be the bound on age, B the groups of a batch, v the version. A group with head h is due
at version h + η. Choosing S at v keeps every promise to the rest if, for each j in 0..η, at
most j·B live groups outside S have h ≤ v + j − η: Hall's condition for unit jobs with B slots
a step. With j = 0 it says that every group due now is in S, so nothing older than η is ever
trained on. Newly admitted groups are due at v + η, and at most (τ+1)·B ≤ (η+1)·B are live,
so admitting preserves it; voiding only relaxes it.
"""

from dataclasses import dataclass

from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group
from plimsoll.ledger.settings import Settings

__all__ = ["Batch", "Waiting", "choose", "surplus"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of a step, the oldest first."""

    groups: tuple[Group, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(group.id for group in self.groups)


@dataclass(frozen=True, slots=True)
class Waiting:
    """No batch yet."""

    ready: int
    needed: int
    due: tuple[str, ...] = ()
    """Running groups without which no batch may be made, the oldest first: exactly as many as have
    to end, become younger or be given up."""
    upto: int = 0
    """The number of the head that makes them due; younger groups are not due."""


@dataclass(frozen=True, slots=True)
class _Excess:
    """The surplus of groups with heads up to a number over those that can be trained in time."""

    groups: int
    upto: int


def choose(books: Books, settings: Settings) -> Batch | Waiting:
    """The oldest ready groups, unless that would break the condition for others."""
    needed = settings.batch_groups
    if books.is_training:
        return Waiting(books.queue.ready, needed)
    chosen = books.queue.oldest(needed)
    excess = _excess(books, settings, chosen)
    due = tuple(books.queue.unready(excess.upto, excess.groups)) if excess else ()
    if due:
        return Waiting(books.queue.ready, needed, due, excess.upto if excess else 0)
    if books.queue.ready < needed:
        return Waiting(books.queue.ready, needed)
    return Batch(tuple(books.groups[name] for names in chosen.values() for name in names))


def _excess(books: Books, settings: Settings, chosen: dict[int, list[str]]) -> _Excess | None:
    """The lowest j at which the condition fails for the groups left outside.

    Free slots of the batch are reserved for the oldest running groups: a group is due when it
    blocks others, not while all are waited for alike.
    """
    first_due = books.version.number - settings.max_staleness
    left = sum(map(len, chosen.values())) - settings.batch_groups
    # Between two heads the count stays and the bound grows: only heads need a check.
    for head, count in sorted(books.queue.by_head.items()):
        left += count - len(chosen.get(head, ()))
        slots = max(0, head - first_due) * settings.batch_groups
        if left > slots:
            return _Excess(left - slots, head)
    return None


def surplus(books: Books, settings: Settings) -> list[str]:
    """Groups that no sequence of batches can use in time any more.

    Under constant settings there are none, except for stragglers. A smaller B or η at a resume can
    leave some. Running groups are given up first, then those with the newest prompts.
    """
    if _fits(books, settings):
        return []
    version, bound = books.version.number, settings.max_staleness
    waiting = sorted(
        (group for group in books.groups.values() if not group.training),
        key=lambda group: (group.head.number, not group.final, group.prompt),
    )
    used, given_up = 0, list[str]()
    for group in waiting:
        slots = (group.head.number + bound - version + 1) * settings.batch_groups
        if used < slots:
            used += 1
        else:
            given_up.append(group.id)
    return given_up


def _fits(books: Books, settings: Settings) -> bool:
    """Whether batches from now on can use every group in time."""
    first_due = books.version.number - settings.max_staleness
    total = 0
    for head, count in sorted(books.queue.by_head.items()):
        total += count
        if total > (head - first_due + 1) * settings.batch_groups:
            return False
    return True
