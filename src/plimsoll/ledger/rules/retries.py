"""Retries: whether a void rollout is retried by its member."""

from collections.abc import Mapping

from plimsoll.ledger.books.books import Books
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import CAUSES, Cause

__all__ = ["retries"]


def retries(books: Books, settings: Settings, ticket: str, cause: Cause) -> bool:
    """Whether the member tries again.

    The table of causes allows a number of retries. Under the policy `complete`, a member that is
    void for a cause without blame for the task has `requeues` more.
    """
    found = books.find(ticket)
    if found is None:
        return False
    group, member = found
    rule = CAUSES[cause]
    if member.voids.get(cause, 0) < rule.retries:
        return True
    # A group that is to be complete gets a new rollout for a void one, unless that would most
    # likely be void as well.
    completes = settings.group_policy == "complete" and group.id in books.groups
    if not completes or rule.against_task:
        return False
    return _held_against(member.voids, cause) < rule.retries + settings.requeues


def _held_against(voids: Mapping[Cause, int], now: Cause) -> int:
    """The number of void tries that count: lost, stale and cancelled ones count only if this one
    has the same cause.

    Stops and restarts of the run are not among the voids.
    """
    spared = {Cause.LOST, Cause.STALE, Cause.CANCELLED} - {now}
    return sum(number for cause, number in voids.items() if cause not in spared)
