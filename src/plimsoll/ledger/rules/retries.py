"""Retries: whether a void rollout is retried by its member."""

from collections.abc import Mapping

from plimsoll.ledger.books.books import Books
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import CAUSES, Cause

__all__ = ["retries"]


def retries(books: Books, settings: Settings, ticket: str, cause: Cause) -> bool:
    """By the table of causes; beyond it if the group is to be complete and the task is not to
    blame."""
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
    """The tries that count; earlier deaths of workers and stale tickets are spared.

    Stops and restarts of the run are not among the voids at all.
    """
    spared = {Cause.LOST, Cause.STALE, Cause.CANCELLED} - {now}
    return sum(number for cause, number in voids.items() if cause not in spared)
