"""Preconditions: whether an event can follow the current books.

An applied event never fits a second time, so an event that fits has a new id.
"""

from typing import TYPE_CHECKING

from plimsoll.core.versions import Version
from plimsoll.ledger.books.group import Member, MemberState
from plimsoll.ledger.events import (
    Admitted,
    Committed,
    Configured,
    Consumed,
    Event,
    Finished,
    GroupVoided,
    Ignored,
    Resumed,
    Returned,
    RolledBack,
    Skipped,
    Started,
    Voided,
    Withheld,
)

if TYPE_CHECKING:
    from plimsoll.ledger.books.books import Books

__all__ = ["TicketEvent", "fits", "fits_member"]

TicketEvent = Started | Resumed | Finished | Voided


def fits(books: "Books", event: Event) -> bool:
    """Whether an event can follow the books."""
    match event:
        case Started() | Resumed() | Finished() | Voided():
            found = books.find(event.ticket)
            return found is not None and fits_member(event, found[1])
        case Admitted():
            new = event.group not in books.groups and event.group not in books.evals
            return new and (event.purpose == "eval" or _is_next(books, event.prompt))
        case Skipped():
            return _is_next(books, event.prompt) and event.task in books.quarantined
        case Returned():
            return event.task in books.stranded and event.number == books.returned
        case Withheld():
            return _may_withhold(books, event)
        case GroupVoided():
            group = books.groups.get(event.group) or books.evals.get(event.group)
            return group is not None and not group.training
        case Consumed():
            at_now = (event.version, event.rollbacks) == (books.version, books.rollbacks)
            return at_now and _may_consume(books, event.groups)
        case Committed():
            following = Version(books.version.lineage, books.version.number + 1)
            return books.is_training and event.version == following
        case RolledBack():
            is_ancestor = books.lineages.descends(books.version, event.parent)
            return is_ancestor and event.number == books.rollbacks
        case Configured():
            return event.number == books.configured
        case Ignored():
            return True


def fits_member(event: TicketEvent, member: Member) -> bool:
    """Whether an event can follow the state of the ticket's member."""
    match event:
        case Finished() | Voided():
            return not member.final
        case Started():
            return member.state is MemberState.WAITING
        case Resumed():
            runs = member.state is MemberState.RUNNING
            return runs and (member.head is None or member.head < event.version)


def _is_next(books: "Books", prompt: int) -> bool:
    return prompt == books.next_prompt or prompt in books.pending


def _may_consume(books: "Books", names: tuple[str, ...]) -> bool:
    """Whether these groups are ready, each once, and none too old."""
    if not names or len(set(names)) != len(names) or books.is_training:
        return False
    oldest = books.version.number - books.rules.max_staleness
    found = [books.groups.get(name) for name in names]
    return all(g is not None and g.final and g.head.number >= oldest for g in found)


def _may_withhold(books: "Books", event: Withheld) -> bool:
    """Whether it changes anything: a member that is not yet withheld, or the version."""
    group = books.groups.get(event.group)
    if group is None or group.training:
        return False
    trainable = {group.ticket(n) for n, member in enumerate(group.members) if not member.withheld}
    later = group.admitted < event.version
    return trainable.issuperset(event.tickets) and (bool(event.tickets) or later)
