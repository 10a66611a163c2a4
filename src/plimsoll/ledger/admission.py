"""How many groups may be admitted now, and how many the last steps of a run can use.

Relative to what is live: there is nothing in it that a restart could get wrong.
"""

from plimsoll.ledger.batching import Waiting, choose
from plimsoll.ledger.books import Books
from plimsoll.ledger.settings import Settings

__all__ = ["lacking", "room", "room_for_evaluation", "usable"]


def room(books: Books, settings: Settings) -> int:
    """Groups of training that may be admitted: min(C − running, (τ+1)·B − live), in groups."""
    seats = (settings.max_running - books.running) // settings.group_size
    return max(0, min(seats, settings.most_live - books.live))


def room_for_evaluation(books: Books, settings: Settings, size: int) -> int:
    """Groups of an evaluation that may be admitted: only the cap on rollouts is shared."""
    return max(0, (settings.max_running - books.running) // size)


def usable(books: Books, settings: Settings, steps: int) -> int:
    """Groups more than are live that so many steps can use; below 0 for how many are too many."""
    return steps * settings.batch_groups - books.live


def lacking(books: Books, settings: Settings, steps: int) -> int:
    """Groups that the next batch lacks and that nobody but those that run can fill it with: what
    so many steps can use is live, and none of it is due."""
    if books.is_training or usable(books, settings, steps) > 0:
        return 0
    choice = choose(books, settings)
    return choice.wanted - choice.ready if isinstance(choice, Waiting) and not choice.due else 0
