"""Stragglers: the remedies for a group that is due and still runs.

In this order: wait for it within its slack; let its rollouts continue with newer weights from a
turn boundary, a bounded number of times; withhold members that are too old if others are not; give
it up and requeue its prompt; after a bounded number of times, exclude its task.
"""

from enum import StrEnum

from plimsoll.ledger.books.group import Group, MemberState
from plimsoll.ledger.settings import Settings

__all__ = ["MOST_RESUMES", "Remedy", "remedy_for", "too_old"]

MOST_RESUMES = 3
"""The limit on resumes of a group, so that a hanging rollout is given up. A merely slow one has had
the time of many others by then."""


class Remedy(StrEnum):
    """The remedies, in the order in which they are tried."""

    WAIT = "wait"
    RESUME = "resume"
    WITHHOLD = "withhold"
    REQUEUE = "requeue"
    QUARANTINE = "quarantine"


def remedy_for(
    group: Group, settings: Settings, upto: int, *, slack_left: bool, can_resume: bool
) -> Remedy:
    """The first remedy that applies to a group that is due because of members with heads up to
    `upto`.

    `slack_left` comes from the caller's clock.
    """
    old = too_old(group, upto)
    if not old and group.waits:
        # Nobody has started it: its worker will start with the current weights.
        return Remedy.RESUME
    if slack_left:
        return Remedy.WAIT
    resumes = max(member.resumes for member in group.members)
    if can_resume and old and resumes < MOST_RESUMES:
        return Remedy.RESUME
    usable = sum(m.state is not MemberState.VOID and not m.withheld for m in group.members)
    if usable > len(old):
        return Remedy.WITHHOLD
    if group.requeues >= settings.requeues:
        return Remedy.QUARANTINE
    return Remedy.REQUEUE


def too_old(group: Group, upto: int) -> tuple[str, ...]:
    """Trainable tickets whose head is at most `upto`."""
    return tuple(
        group.ticket(index)
        for index, member in enumerate(group.members)
        if not member.withheld and member.head is not None and member.head.number <= upto
    )
