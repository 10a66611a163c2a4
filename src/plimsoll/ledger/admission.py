"""How many groups may be admitted now.

Relative to what is live: there is nothing in it that a restart could get wrong.
"""

from plimsoll.ledger.books import Books
from plimsoll.ledger.settings import Settings

__all__ = ["room", "room_for_evaluation"]


def room(books: Books, settings: Settings) -> int:
    """Groups of training that may be admitted: min(C − running, (τ+1)·B − live), in groups."""
    seats = (settings.max_running - books.running) // settings.group_size
    return max(0, min(seats, settings.most_live - books.live))


def room_for_evaluation(books: Books, settings: Settings, size: int) -> int:
    """Groups of an evaluation that may be admitted: only the cap on rollouts is shared."""
    return max(0, (settings.max_running - books.running) // size)
