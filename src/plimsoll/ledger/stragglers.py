"""What is done about a group that is due and still runs.

In this order: it is waited for within its slack; its rollouts go on with newer weights from
a turn boundary; members that are too old are withheld where others are not; it is given up
and its prompt comes again; after so many times its task is out.
"""

from enum import StrEnum

from plimsoll.ledger.group import Group
from plimsoll.ledger.settings import Settings
from plimsoll.ledger.versions import Version

__all__ = ["Remedy", "remedy_for", "too_old"]


class Remedy(StrEnum):
    """The remedies, in the order in which they are tried."""

    WAIT = "wait"
    RESUME = "resume"
    WITHHOLD = "withhold"
    REQUEUE = "requeue"
    QUARANTINE = "quarantine"


def remedy_for(
    group: Group, settings: Settings, version: Version, *, slack_left: bool, can_resume: bool
) -> Remedy:
    """The first remedy that applies. `slack_left` is the caller's clock speaking."""
    if slack_left:
        return Remedy.WAIT
    if can_resume:
        return Remedy.RESUME
    old = too_old(group, settings, version)
    young = len(group.members) - len(old) - sum(m.withheld for m in group.members)
    if young > 0:
        return Remedy.WITHHOLD
    if group.requeues >= settings.requeues:
        return Remedy.QUARANTINE
    return Remedy.REQUEUE


def too_old(group: Group, settings: Settings, version: Version) -> tuple[str, ...]:
    """Tickets that could not be trained on after the step that starts from `version`."""
    first = version.number + 1 - settings.max_staleness
    return tuple(
        group.ticket(place)
        for place, member in enumerate(group.members)
        if not member.withheld and member.head is not None and member.head.number < first
    )
