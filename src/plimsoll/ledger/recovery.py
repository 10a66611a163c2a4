"""Recovery: the groups that an undone step had consumed, rebuilt from the journal."""

from typing import Protocol

import msgspec

from plimsoll.core.errors import LedgerError
from plimsoll.core.versions import Lineages, Version
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group, split_ticket
from plimsoll.ledger.events import (
    Admitted,
    Consumed,
    Event,
    Finished,
    GroupVoided,
    Resumed,
    Started,
    Voided,
    Withheld,
)

__all__ = [
    "History",
    "can_restore",
    "consumed_since",
    "is_ahead",
    "is_beyond",
    "rebuild",
    "subject_of",
]


class History(Protocol):
    """Access to events that have left the books."""

    def about(self, subject: str) -> list[Event]: ...


def subject_of(event: Event) -> str:
    """The subject of an event: a group, a step, or the run as a whole."""
    match event:
        case Admitted() | Withheld() | GroupVoided():
            return event.group
        case Started() | Resumed() | Finished() | Voided():
            parts = split_ticket(event.ticket)
            return parts[0] if parts else ""
        case Consumed():
            return _step(event.version)
        case _:
            return ""


def _step(version: Version) -> str:
    return f"step {version.lineage}:{version.number}"


def is_ahead(books: Books, at: Version) -> bool:
    """Whether a checkpoint is of the current step, whose commit is not in the journal yet."""
    return books.is_training and at == Version(books.version.lineage, books.version.number + 1)


def is_beyond(books: Books, at: Version) -> bool:
    """Whether no event of these books can have made a version."""
    if at.lineage >= books.lineages.next_lineage():
        return True
    same = at.lineage == books.version.lineage
    return same and at.number > books.version.number + books.is_training


def can_restore(books: Books, at: Version) -> bool:
    """Whether the run can continue from a version: it descends from it, or was about to make it."""
    return is_ahead(books, at) or books.lineages.descends(books.version, at)


def consumed_since(history: History, lineages: Lineages, now: Version, at: Version) -> list[str]:
    """The groups consumed between a version and the current one."""
    found: list[str] = []
    version = now
    while version != at:
        parent = lineages.parents.get(version.lineage)
        if parent is not None and version.number == parent.number:
            version = parent
            continue
        version = Version(version.lineage, version.number - 1)
        steps = [event for event in history.about(_step(version)) if isinstance(event, Consumed)]
        if not steps:
            raise LedgerError(f"the journal has no Consumed event of version {version}")
        found[:0] = steps[-1].groups  # earlier ones were undone
    return found


def rebuild(history: History, books: Books, name: str) -> Group:
    """A group as it was when it was ready, rebuilt from its events."""
    scratch = Books()
    if books.settings is not None:
        # It was ready by the settings of its time, whatever the current ones are.
        scratch.settings = msgspec.structs.replace(
            books.settings, group_policy="min_graded", min_graded=1
        )
    scratch.version = books.version
    scratch.lineages = books.lineages
    for event in history.about(name):
        if isinstance(event, Admitted):
            scratch.next_prompt = event.prompt
        scratch.apply(event)
    try:
        return scratch.groups[name]
    except KeyError:
        raise LedgerError(f"the events of group {name} do not make it ready") from None
