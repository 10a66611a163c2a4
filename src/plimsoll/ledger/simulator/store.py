"""A journal in memory that can fail at any write, before or after it took the event."""

from collections.abc import Iterable

from plimsoll.ledger.audit import Auditor
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.events import Event
from plimsoll.ledger.journal.journal import is_durable
from plimsoll.ledger.recovery import subject_of

__all__ = ["Crash", "Store"]


class Crash(Exception):
    """The writing process has been killed."""


class Store:
    """Stores events as the journal does, in order and by subject, and audits them."""

    def __init__(self) -> None:
        self.writes = 0
        self.crash_at: int | None = None
        """The number of the write at which the process is killed."""
        self.keeps_last = True
        """Whether the event of that write is stored all the same."""
        self._begin([])

    def _begin(self, events: Iterable[Event]) -> None:
        self.events: list[Event] = []
        self.auditor = Auditor()
        self._about: dict[str, list[Event]] = {}
        for event in events:
            self._keep(event)

    def _keep(self, event: Event) -> None:
        self.events.append(event)
        self.auditor.take(event)
        self._about.setdefault(subject_of(event), []).append(event)

    def put(self, event: Event) -> None:
        self.writes += 1
        crashes = self.crash_at is not None and self.writes >= self.crash_at
        if not crashes or self.keeps_last:
            self._keep(event)
        if crashes:
            self.crash_at = None
            raise Crash

    def about(self, subject: str) -> list[Event]:
        return self._about.get(subject, [])

    def lose_power(self) -> None:
        """Drop everything written after the last event that had to be synced."""
        last = max((n for n, event in enumerate(self.events) if is_durable(event)), default=0)
        self._begin(self.events[: last + 1])

    def books(self) -> Books:
        """The books of all events."""
        books = Books()
        for event in self.events:
            assert books.apply(event), f"{event} cannot follow those before"
        return books
