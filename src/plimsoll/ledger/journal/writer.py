"""Writer: a thread that writes queued events as one transaction after another.

A single caller waits for one commit; concurrent callers share it.
"""

import asyncio
import contextlib
import queue
import threading
from dataclasses import dataclass

from plimsoll.core.errors import LedgerError
from plimsoll.ledger.events import Event
from plimsoll.ledger.journal.journal import Journal

__all__ = ["Writer"]

_MOST_AT_ONCE = 5000


@dataclass(frozen=True, slots=True)
class _Entry:
    event: Event
    subject: str
    done: "asyncio.Future[None]"


class Writer:
    """Takes events from one event loop. After a failed write it takes no more."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._entries: queue.SimpleQueue[_Entry | bytes | None] = queue.SimpleQueue()
        self._failed: LedgerError | None = None
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> LedgerError | None:
        """The error that stopped it; None while it can write."""
        return self._failed

    def put(self, event: Event, subject: str) -> "asyncio.Future[None]":
        """Queue an event; the future is done when it is written."""
        if self._failed is not None:
            raise LedgerError(str(self._failed))
        done = self._loop.create_future()
        self._entries.put(_Entry(event, subject, done))
        return done

    def put_snapshot(self, books: bytes) -> None:
        """Store the books after all events queued before."""
        self._entries.put(books)

    async def close(self) -> None:
        """Write the queued events, and end."""
        self._entries.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        ended = False
        while not ended:
            batch = [self._entries.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < _MOST_AT_ONCE:
                    batch.append(self._entries.get_nowait())
            ended = None in batch
            entries: list[_Entry] = []
            for entry in batch:
                if isinstance(entry, _Entry):
                    entries.append(entry)
                elif isinstance(entry, bytes):
                    # A snapshot is of the books after everything before it, and nothing else.
                    self._write(entries)
                    entries = []
                    self._keep(entry)
            self._write(entries)

    def _write(self, entries: list[_Entry]) -> None:
        if not entries:
            return
        if self._failed is None:
            try:
                written = self._journal.append((entry.event, entry.subject) for entry in entries)
            except LedgerError as error:
                self._failed = error
            else:
                if written != len(entries):
                    # The books apply no event twice, so a duplicate id is an error.
                    path = self._journal.path
                    self._failed = LedgerError(f"{path}: the books and the journal do not agree")
        futures = [entry.done for entry in entries]
        with contextlib.suppress(RuntimeError):  # the event loop is closed: no caller waits
            self._loop.call_soon_threadsafe(self._resolve, futures, self._failed)

    def _keep(self, books: bytes) -> None:
        if self._failed is not None:
            return
        try:
            self._journal.keep_snapshot(books)
        except LedgerError as error:
            self._failed = error

    @staticmethod
    def _resolve(futures: "list[asyncio.Future[None]]", failed: LedgerError | None) -> None:
        for future in futures:
            if future.done():
                continue
            if failed is None:
                future.set_result(None)
            else:
                future.set_exception(failed)
                future.exception()  # not every caller awaits every write: no warning
