"""Which groups make the next batch, and which must be waited for or given up.

Let η be the bound on age, B the groups of a batch, v the version. A group with head h is due
at version h + η. Choosing S at v keeps every promise to the rest if, for each j in 0..η, at
most j·B live groups outside S have h ≤ v + j − η: Hall's condition for unit jobs with B slots
a step. With j = 0 it says that all that is due now is in S, so nothing older than η is ever
trained on. Newly admitted groups are due at v + η, and (τ+1)·B ≤ (η+1)·B are live at most,
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
    wanted: int
    due: tuple[str, ...] = ()
    """Groups that still run and without which no batch may be made, the oldest first: just as
    many as have to end, become younger or be given up."""
    upto: int = 0
    """The number of the head that makes them due: younger than that, they are not."""


@dataclass(frozen=True, slots=True)
class _Excess:
    """There are so many more groups with heads up to a number than can be trained on in time."""

    groups: int
    upto: int


def choose(books: Books, settings: Settings) -> Batch | Waiting:
    """The oldest ready groups, unless that would make a promise to others impossible."""
    wanted = settings.batch_groups
    if books.is_training:
        return Waiting(books.queue.ready, wanted)
    chosen = books.queue.oldest(wanted)
    excess = _excess(books, settings, chosen)
    due = tuple(books.queue.unready(excess.upto, excess.groups)) if excess else ()
    if due:
        return Waiting(books.queue.ready, wanted, due, excess.upto if excess else 0)
    if books.queue.ready < wanted:
        return Waiting(books.queue.ready, wanted)
    return Batch(tuple(books.groups[name] for names in chosen.values() for name in names))


def _excess(books: Books, settings: Settings, chosen: dict[int, list[str]]) -> _Excess | None:
    """Where the condition does not hold for what is left outside, at the lowest j.

    Places of the batch that nobody is ready for are left to the oldest of those that run: a
    group is due when it is in the way of others, not while all are waited for alike.
    """
    first_due = books.version.number - settings.max_staleness
    left = sum(map(len, chosen.values())) - settings.batch_groups
    # Between two heads the count stays and the bound grows: it is enough to look at heads.
    for head, count in sorted(books.queue.by_head.items()):
        left += count - len(chosen.get(head, ()))
        slots = max(0, head - first_due) * settings.batch_groups
        if left > slots:
            return _Excess(left - slots, head)
    return None


def surplus(books: Books, settings: Settings) -> list[str]:
    """Groups that no order of batches can use in time any more.

    There are none under one set of settings, except for those that took too long. A smaller
    B or η at a resume can leave some. Those that still run are given up first, then those
    whose prompt came last.
    """
    if _fits(books, settings):
        return []
    version, bound = books.version.number, settings.max_staleness
    waiting = sorted(
        (group for group in books.groups.values() if not group.training),
        key=lambda group: (group.head.number, not group.final, group.prompt),
    )
    kept, given_up = 0, list[str]()
    for group in waiting:
        slots = (group.head.number + bound - version + 1) * settings.batch_groups
        if kept < slots:
            kept += 1
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
