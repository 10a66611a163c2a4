"""How many groups may be admitted now, and how many the last steps of a run can use.

Relative to what is live: there is nothing in it that a restart could get wrong.
"""

import math

from plimsoll.ledger.books.books import Books
from plimsoll.ledger.rules.batching import Waiting, choose
from plimsoll.ledger.settings import Settings

__all__ = ["LastGroups", "room", "room_for_evaluation"]


def room(books: Books, settings: Settings) -> int:
    """Groups of training that may be admitted: min(C − running, (τ+1)·B − live), in groups."""
    seats = (settings.max_running - books.running) // settings.group_size
    return max(0, min(seats, settings.most_live - books.live))


def room_for_evaluation(
    books: Books, settings: Settings, size: int, *, training_is_over: bool = False
) -> int:
    """Groups of an evaluation that may be admitted: only the cap on rollouts is shared.

    Once training is over, nobody starts what waits of it: that would hold its seats for ever.
    """
    idle = books.waiting_for_training if training_is_over else 0
    return max(0, (settings.max_running - books.running + idle) // size)


class LastGroups:
    """How many groups the last steps of a run can use, by the caller's clock.

    Others may come in the places of the last ones where those take longer than the slack:
    whichever are ready first are used.
    """

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self.lacking_since = math.inf
        """Since when nothing but what runs can make the next batch."""

    def most(self, books: Books, settings: Settings, steps: int, now: float) -> int:
        """How many groups more than are live so many steps can use."""
        usable = steps * settings.batch_groups - books.live
        lacking = 0 if books.is_training or usable > 0 else _lacking(books, settings)
        self.lacking_since = min(self.lacking_since, now) if lacking else math.inf
        instead = lacking if now >= self.lacking_since + self._slack else 0
        return max(0, usable + instead)


def _lacking(books: Books, settings: Settings) -> int:
    """Groups that the next batch lacks, where none that is live is due."""
    choice = choose(books, settings)
    return choice.wanted - choice.ready if isinstance(choice, Waiting) and not choice.due else 0
