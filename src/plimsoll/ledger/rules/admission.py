"""Admission: how many groups may be admitted now, and how many the last steps can use.

The rule is relative to the live groups: there is no state that a restart could get wrong.
"""

import math

from plimsoll.ledger.books.books import Books
from plimsoll.ledger.rules.batching import Waiting, choose
from plimsoll.ledger.settings import Settings

__all__ = ["LastGroups", "room", "room_for_evaluation"]


def room(books: Books, settings: Settings) -> int:
    """Training groups that may be admitted: min(C − running, (τ+1)·B − live), in groups."""
    seats = (settings.max_running - books.running) // settings.group_size
    return max(0, min(seats, settings.most_live - books.live))


def room_for_evaluation(
    books: Books, settings: Settings, size: int, *, training_is_over: bool = False
) -> int:
    """Evaluation groups that may be admitted: only the cap on rollouts is shared.

    Once training is over, its unstarted tickets no longer count: they would hold their slots for
    ever.
    """
    unstarted = books.unstarted_training if training_is_over else 0
    return max(0, (settings.max_running - books.running + unstarted) // size)


class LastGroups:
    """The number of groups that the last steps of a run can use, by the caller's clock.

    If the last groups exceed the slack, others are admitted in their place; the first that are
    ready are used.
    """

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self.lacking_since = math.inf
        """The time since which only running groups can complete the next batch."""

    def most(self, books: Books, settings: Settings, steps: int, now: float) -> int:
        """The number of further groups that the remaining steps can use."""
        usable = steps * settings.batch_groups - books.live
        lacking = 0 if books.is_training or usable > 0 else _lacking(books, settings)
        self.lacking_since = min(self.lacking_since, now) if lacking else math.inf
        instead = lacking if now >= self.lacking_since + self._slack else 0
        return max(0, usable + instead)


def _lacking(books: Books, settings: Settings) -> int:
    """Groups that the next batch lacks, if no live group is due."""
    choice = choose(books, settings)
    return choice.needed - choice.ready if isinstance(choice, Waiting) and not choice.due else 0
