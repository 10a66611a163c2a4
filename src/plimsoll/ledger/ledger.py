"""Ledger: the accounts of a run, on disk.

Every call changes the books at once and returns when the change is written; `consume` and
`commit` return when it is synced to disk. After a failed write nothing is changed any more: the
books in memory would be ahead of the journal.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from plimsoll.core.errors import LedgerError
from plimsoll.core.ids import Owner
from plimsoll.core.versions import Version
from plimsoll.ledger.accounts import Accounts
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group
from plimsoll.ledger.checkpoints import FOLDER, Checkpoints
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.events import Event, Segment
from plimsoll.ledger.journal import snapshot
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.journal.location import FILE, LOCK, run_of
from plimsoll.ledger.journal.lock import Lock
from plimsoll.ledger.journal.writer import Writer
from plimsoll.ledger.recovery import subject_of
from plimsoll.ledger.rules.batching import Batch, Waiting
from plimsoll.ledger.rules.stragglers import Remedy
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Graded, Void

__all__ = ["Ledger", "read_books"]

_SNAPSHOT_EVERY = 20_000

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def read_books(journal: Journal, *, from_the_start: bool = False) -> Books:
    """The books of a journal, read from its last snapshot or from its first event."""
    books, after = Books(), 0
    stored = None if from_the_start else journal.snapshot()
    if stored is not None:
        try:
            if not stored.is_whole:
                raise msgspec.DecodeError("it does not match its digest")
            books, after = snapshot.load(stored.books), stored.seq
        except msgspec.MsgspecError as error:
            _log.warning("%s: its snapshot is not used: %s", journal.path, error)
    for seq, event in journal.read(after):
        if not books.apply(event):
            raise LedgerError(f"the ledger {journal.path}: event {seq} cannot follow those before")
    return books


class Ledger:
    """The ledger of one run, open for writing. An async context manager for one event loop."""

    def __init__(
        self, folder: Path, settings: Settings, owner: Owner, clock: Callable[[], float]
    ) -> None:
        self.path = folder / FILE
        self._settings = settings
        self._owner = owner
        self._clock = clock
        self._since_snapshot = 0
        self._last_write: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            lock = Lock.take(self.path.with_name(LOCK), self._owner)
            stack.callback(lock.release)
            self._journal = await asyncio.to_thread(self._open)
            stack.callback(self._journal.close)
            books = await asyncio.to_thread(read_books, self._journal)
            self._check_whole(books)
            # Runs that all end early would never write one.
            self._since_snapshot = self._journal.since_snapshot
            reader = Journal.open(self.path)  # the writer's own connection belongs to its thread
            stack.callback(reader.close)
            self._writer = Writer(self._journal)
            stack.push_async_callback(self._writer.close)
            self.accounts = Accounts(books, self._sink, reader, self._clock)
            await self._do(lambda: self.accounts.configure(self._settings))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async with self._stack:
            if self._writer.failed is None:
                self._writer.put_snapshot(snapshot.dump(self.accounts.books))

    def _check_whole(self, books: Books) -> None:
        """Verify before anything is written: lost events can still be put back."""
        if missing := Checkpoints(run_of(self.path.parent) / FOLDER).beyond(books):
            raise LedgerError(
                f"{missing}. Put {self.path} and {self.path.name}-wal back from one copy, or "
                "begin another run"
            )

    def _open(self) -> Journal:
        if self.path.exists():
            return Journal.open(self.path, writable=True)
        return Journal.create(self.path)

    @property
    def books(self) -> Books:
        """Read-only."""
        return self.accounts.books

    @property
    def position(self) -> int:
        """The number of written events: part of a checkpoint's manifest."""
        return self._journal.seq

    async def admit(self, order: DataOrder, most: int | None = None) -> list[Group]:
        """Admit as many groups as there is room for, at most `most`."""
        return await self._do(lambda: self.accounts.admit(order, most))

    async def readmit(self, tasks: Collection[str]) -> list[str]:
        """Readmit those of the tasks that are excluded but not to blame; returns their names."""
        return await self._do(lambda: self.accounts.readmit(tasks))

    def evaluation_name(self, name: str, taken: Collection[str] = ()) -> str:
        """A unique name for an evaluation: `name`, with a number appended if it is taken."""
        return self.accounts.evaluation_name(name, taken)

    async def admit_evaluation(
        self,
        name: str,
        tasks: Sequence[str],
        size: int,
        *,
        begun: int = 0,
        training_is_over: bool = False,
    ) -> list[Group]:
        """Admit groups of an evaluation, as far as the cap on rollouts allows."""
        return await self._do(
            lambda: self.accounts.admit_evaluation(
                name, tasks, size, begun=begun, training_is_over=training_is_over
            )
        )

    async def give_up_evaluation(self, name: str) -> None:
        """Abandon an evaluation: its remaining tickets do not run."""
        await self._do(lambda: self.accounts.give_up_evaluation(name))

    async def start(self, ticket: str, worker: str) -> bool:
        """Record that a worker has taken a ticket."""
        return await self._do(lambda: self.accounts.start(ticket, worker))

    async def finish(
        self,
        ticket: str,
        verdict: Graded,
        seconds: float,
        segments: Iterable[Segment] = (),
        trial: str = "",
    ) -> bool:
        """Record a graded rollout. False for a ticket that is not in flight: nothing changes."""
        return await self._do(
            lambda: self.accounts.finish(ticket, verdict, seconds, segments, trial)
        )

    async def void(
        self,
        ticket: str,
        verdict: Void,
        seconds: float = 0.0,
        *,
        again: bool = False,
        has_answered: bool = True,
    ) -> bool:
        """Record a void rollout.

        `again`: it is retried, whatever the cause; `has_answered`: the policy had answered.
        """
        return await self._do(
            lambda: self.accounts.void(
                ticket, verdict, seconds, again=again, has_answered=has_answered
            )
        )

    async def distrust(self, tickets: Iterable[str], verdict: Void) -> list[str]:
        """Give up live groups with a rollout that turns out to be worthless; their names."""
        return await self._do(lambda: self.accounts.distrust(tickets, verdict))

    async def attend(self, group: str, *, slack_left: bool, can_resume: bool) -> Remedy | None:
        """Apply the first remedy that helps a straggling group that is due."""
        return await self._do(
            lambda: self.accounts.attend(group, slack_left=slack_left, can_resume=can_resume)
        )

    def choose(self) -> Batch | Waiting:
        """The next batch, or the groups that it waits for. Changes nothing."""
        return self.accounts.choose()

    async def consume(self, batch: Batch) -> None:
        """Record that training on the batch begins."""
        await self._do(lambda: self.accounts.consume(batch))

    async def reject(self, reasons: Mapping[str, str]) -> None:
        """Reject the batch: the named groups are given up, the others wait."""
        await self._do(lambda: self.accounts.reject(reasons))

    async def commit(self, checkpoint: str = "") -> Version:
        """Commit the step; returns the new version."""
        return await self._do(lambda: self.accounts.commit(checkpoint))

    async def recover(
        self,
        at: Version,
        is_alive: Callable[[str, str], bool],
        *,
        keep_evaluations: bool = False,
    ) -> Version:
        """Continue from a version whose weights are available, after any crash."""
        return await self._do(
            lambda: self.accounts.recover(at, is_alive, keep_evaluations=keep_evaluations)
        )

    async def _do(self, change: Callable[[], _T]) -> _T:
        """Make a change, and return when its events are written."""
        self._last_write = None
        try:
            result = change()
        finally:
            written = self._last_write
        if written is not None:
            await asyncio.shield(written)
        return result

    def _sink(self, event: Event) -> None:
        self._last_write = self._writer.put(event, subject_of(event))
        self._since_snapshot += 1
        if self._since_snapshot >= _SNAPSHOT_EVERY:
            self._since_snapshot = 0
            # The books do not include this event yet: take the snapshot at the next turn.
            asyncio.get_running_loop().call_soon(self._keep_snapshot)

    def _keep_snapshot(self) -> None:
        self._writer.put_snapshot(snapshot.dump(self.accounts.books))
