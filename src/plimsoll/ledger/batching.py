"""Which groups make the next batch, and which must be waited for or given up.

Let η be the bound on age, B the groups of a batch, v the version. A group with head h is due
at version h + η. Choosing S at v keeps every promise to the rest if, for each j in 0..η, at
most j·B live groups outside S have h ≤ v + j − η: Hall's condition for unit jobs with B slots
a step. With j = 0 it says that all that is due now is in S, so nothing older than η is ever
trained on. Newly admitted groups are due at v + η, and (τ+1)·B ≤ (η+1)·B are live at most,
so admitting preserves it; voiding only relaxes it.
"""

from dataclasses import dataclass

from plimsoll.ledger.books import Books
from plimsoll.ledger.group import Group
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
    """Groups that still run and without which no batch may be made, the oldest first."""


def choose(books: Books, settings: Settings) -> Batch | Waiting:
    """The oldest ready groups, unless that would make a promise to others impossible."""
    wanted = settings.batch_groups
    chosen = [books.groups[name] for name in books.queue.oldest(wanted)]
    due = _due(books, settings, chosen)
    if due or len(chosen) < wanted:
        return Waiting(books.queue.ready, wanted, due)
    return Batch(tuple(chosen))


def _due(books: Books, settings: Settings, chosen: list[Group]) -> tuple[str, ...]:
    """Groups that run and are needed now: with them missing the condition would not hold."""
    version, bound = books.version.number, settings.max_staleness
    heads = sorted(group.head.number for group in chosen)
    outside = dict(books.queue.by_head)
    for head in heads:
        outside[head] -= 1
    for j in range(bound + 1):
        last = version + j - bound
        left = sum(count for head, count in outside.items() if head <= last)
        if left > j * settings.batch_groups:
            return tuple(books.queue.unready(last))
    return ()


def surplus(books: Books, settings: Settings) -> list[str]:
    """Groups that no order of batches can use in time any more.

    There are none under one set of settings, except for those that took too long. A smaller
    B or η at a resume can leave some. Those that still run are given up first, then those
    whose prompt came last.
    """
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
