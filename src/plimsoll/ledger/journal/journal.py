"""Journal: events appended to one SQLite file, each at most once.

WAL mode with one writer: a thread that writes all events since its last commit as one
transaction. `Consumed`, `Committed` and `RolledBack` are synced to disk before their write
returns; the others survive a crash of this process, not of the machine. Each row carries a digest
of all rows up to it, so that a changed or missing row is detected.
"""

import contextlib
import hashlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from plimsoll.core.errors import LedgerError
from plimsoll.ledger.events import Committed, Consumed, Event, RolledBack

__all__ = ["Connection", "Journal", "Snapshot", "broken", "connect", "create", "is_durable"]

# Connections to a ledger's SQLite file, which is checked before the first connection.
#
# Never check it beside an open connection: closing any descriptor of a file drops every POSIX
# lock of this process on it, SQLite's included, and SQLite does not take them again. Another
# reader then believes that it is the last user, and removes the log that this process still
# writes to.

_MAGIC = b"SQLite format 3\x00"


class Connection(sqlite3.Connection):
    """A connection of this process, registered until it is closed."""

    file: tuple[int, int] | None = None
    """The file, by device and inode."""

    def close(self) -> None:
        super().close()
        with _opening:
            _open.discard(self)


_open: weakref.WeakSet[Connection] = weakref.WeakSet()
_opening = threading.Lock()
"""Held from the check to the connection: no other thread may connect in between."""


def connect(path: Path, mode: str) -> Connection:
    """Open an existing file. Refuses a file that is not a database, or a truncated one, and
    leaves it unchanged."""
    with _opening:
        try:
            found = path.stat()
        except OSError as error:
            raise _cannot_open(path, error.strerror) from None
        file = found.st_dev, found.st_ino
        if all(one.file != file for one in _open):
            _check_file(path)
        connection = _connect(path, mode)
        connection.file = file
        _open.add(connection)
        return connection


def create(path: Path) -> Connection:
    """Create an empty file."""
    return _connect(path, "rwc")


def broken(path: Path, why: str) -> LedgerError:
    """The error for a damaged file."""
    return LedgerError(
        f"the ledger {path} is damaged ({why}); it is left as it is: "
        "restore it from a copy, or start a new run"
    )


def _connect(path: Path, mode: str) -> Connection:
    try:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True, isolation_level=None, check_same_thread=False, timeout=10.0,
            factory=Connection,
        )  # fmt: skip
    except sqlite3.Error as error:
        raise _cannot_open(path, error) from None


def _check_file(path: Path) -> None:
    """Refuse a file that is not a database, or a truncated one, before SQLite opens it."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
            size = os.fstat(file.fileno()).st_size
        log = path.with_name(f"{path.name}-wal")
        has_log = log.exists() and log.stat().st_size > 0
    except OSError as error:
        raise _cannot_open(path, error.strerror) from None
    if not head.startswith(_MAGIC):
        raise LedgerError(f"{path} is not a ledger; it is left as it is")
    page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    # With a log beside it, the missing part may be there: a crash leaves that, and it is complete.
    if not has_log and size < pages * (page if page > 1 else 65536):
        raise broken(path, "its end is missing")


def _cannot_open(path: Path, why: object) -> LedgerError:
    return LedgerError(f"cannot open the ledger {path}: {why}")


_APPLICATION = 0x504C4C31
"""Marks a SQLite file as a Plimsoll ledger."""
_SCHEMA = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    data BLOB NOT NULL,
    digest BLOB NOT NULL
);
CREATE INDEX events_by_subject ON events (subject, seq);
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, digest BLOB NOT NULL, books BLOB NOT NULL);
"""
_VERSION = 1
_NOTHING = b"\x00" * 16
_Row = tuple[int, str, str, bytes, bytes]

_decoder = msgspec.msgpack.Decoder(Event)
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The books after an event, so that not all events have to be read again."""

    seq: int
    books: bytes
    is_whole: bool
    """Whether it is intact, and the events before it are the same."""


def is_durable(event: Event) -> bool:
    """Whether it must be on disk before anything relies on it."""
    return isinstance(event, Consumed | Committed | RolledBack)


class Journal:
    """One file. Use it from one thread at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._level = ""
        row = self._one("SELECT seq, digest FROM events ORDER BY seq DESC LIMIT 1")
        self.seq: int = row[0] if row is not None else 0
        self._digest: bytes = row[1] if row is not None else _NOTHING

    @classmethod
    def create(cls, path: Path) -> "Journal":
        """Create a journal: complete or absent. Never overwrites an existing file."""
        part = path.with_name(f"{path.name}.part")
        try:
            part.unlink(missing_ok=True)
            connection = create(part)
            try:
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
                if mode != "wal":
                    raise LedgerError(
                        f"cannot create the ledger {path}: its file system has no shared memory, "
                        "which SQLite's write-ahead log needs; name a folder on a local disk with "
                        "[storage] ledger"
                    )
                connection.executescript(
                    f"BEGIN; PRAGMA application_id={_APPLICATION};"
                    f"PRAGMA user_version={_VERSION}; {_SCHEMA} COMMIT;"
                )
            finally:
                connection.close()
            os.link(part, path)
            part.unlink()
        except FileExistsError:
            part.unlink()
            raise LedgerError(f"{path} exists already") from None
        except OSError as error:
            raise LedgerError(f"cannot create the ledger {path}: {error.strerror}") from None
        except sqlite3.Error as error:
            raise LedgerError(f"cannot create the ledger {path}: {error}") from None
        return cls.open(path, writable=True)

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> "Journal":
        """Open an existing journal. Refuses other or damaged files, untouched."""
        connection = connect(path, "rw" if writable else "ro")
        try:
            marks = [connection.execute(f"PRAGMA {name}").fetchone()[0]
                     for name in ("application_id", "user_version")]  # fmt: skip
            if marks[0] != _APPLICATION:
                raise LedgerError(f"{path} is a database of something else, not a ledger")
            if marks[1] != _VERSION:
                raise LedgerError(
                    f"{path} was written by another version of Plimsoll: its format is "
                    f"{marks[1]}, this one reads {_VERSION}"
                )
            return cls(path, connection)
        except sqlite3.Error as error:
            connection.close()
            raise _unreadable(path, error) from None
        except LedgerError:
            connection.close()
            raise

    def append(self, events: Iterable[tuple[Event, str]]) -> int:
        """Write events, each with its subject, as one transaction.

        Skips events whose id exists already; returns the number of new ones.
        """
        events = list(events)
        try:
            self._sync_level("FULL" if any(is_durable(event) for event, _ in events) else "NORMAL")
            with _transaction(self._connection):
                rows = self._rows(events)
                self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise LedgerError(f"cannot write the ledger {self.path}: {error}") from None
        if rows:
            self.seq, self._digest = rows[-1][0], rows[-1][4]
        return len(rows)

    def _rows(self, events: list[tuple[Event, str]]) -> list[_Row]:
        seq, digest = self.seq, self._digest
        rows: dict[str, _Row] = {}
        query = "SELECT 1 FROM events WHERE id = ?"
        for event, subject in events:
            name = event.id
            if name not in rows and self._one(query, (name,)) is None:
                data = _encoder.encode(event)
                seq, digest = seq + 1, _chain(digest, data)
                rows[name] = (seq, name, subject, data, digest)
        return list(rows.values())

    def _sync_level(self, level: str) -> None:
        if level != self._level:
            self._connection.execute(f"PRAGMA synchronous={level}")
            self._level = level

    @contextlib.contextmanager
    def as_of_now(self) -> Generator[None]:
        """Read a consistent snapshot, whatever a writer adds meanwhile."""
        try:
            self._connection.execute("BEGIN")
            self._one("SELECT 1 FROM events LIMIT 1")  # the snapshot begins here
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from None
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def read(self, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Events in order, each verified against the digest written with it."""
        digest = self._digest_at(after)
        last = after
        try:
            rows = self._connection.execute(
                "SELECT seq, data, digest FROM events WHERE seq > ? ORDER BY seq", (after,)
            )
            for seq, data, written in rows:
                digest = _chain(digest, data)
                if seq != last + 1:
                    raise broken(self.path, f"event {last + 1} is missing")
                if digest != written:
                    raise broken(self.path, f"event {seq} does not match its digest")
                last = seq
                yield seq, _decoder.decode(data)
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise broken(self.path, f"after event {last}: {error}") from None

    def ids_and_subjects(self) -> Iterator[tuple[str, str]]:
        """The id and the subject of each event as stored, in order. No digest covers them."""
        try:
            yield from self._connection.execute("SELECT id, subject FROM events ORDER BY seq")
        except sqlite3.Error as error:
            raise broken(self.path, f"its ids and subjects: {error}") from None

    def about(self, subject: str) -> list[Event]:
        """All events about one subject."""
        try:
            rows = self._connection.execute(
                "SELECT data FROM events WHERE subject = ? ORDER BY seq", (subject,)
            )
            return [_decoder.decode(data) for (data,) in rows]
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise broken(self.path, f"of {subject}: {error}") from None

    def keep_snapshot(self, books: bytes) -> None:
        """Store the books after the last event; removes older snapshots."""
        try:
            with _transaction(self._connection):
                self._connection.execute("DELETE FROM snapshots")
                self._connection.execute(
                    "INSERT INTO snapshots VALUES (?, ?, ?)",
                    (self.seq, _chain(self._digest, books), books),
                )
        except sqlite3.Error as error:
            raise LedgerError(f"cannot write the ledger {self.path}: {error}") from None

    def snapshot(self) -> Snapshot | None:
        """The last snapshot, if it and its event are intact."""
        try:
            row = self._one("SELECT seq, digest, CAST(books AS BLOB) FROM snapshots LIMIT 1")
            if row is None:
                return None
            seq, digest, books = row
            return Snapshot(seq, books, is_whole=_chain(self._digest_at(seq), books) == digest)
        except (sqlite3.Error, TypeError) as error:
            raise broken(self.path, f"its snapshot: {error}") from None

    @property
    def since_snapshot(self) -> int:
        """The number of events after the last snapshot."""
        row = self._one("SELECT seq FROM snapshots LIMIT 1")
        return self.seq - (row[0] if row is not None else 0)

    def close(self) -> None:
        self._connection.close()

    def _digest_at(self, seq: int) -> bytes:
        if seq == 0:
            return _NOTHING
        row = self._one("SELECT digest FROM events WHERE seq = ?", (seq,))
        if row is None:
            raise broken(self.path, f"it has no event {seq}")
        return row[0]

    def _one(self, query: str, values: tuple[object, ...] = ()) -> tuple[Any, ...] | None:
        return self._connection.execute(query, values).fetchone()


def _chain(digest: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16, key=digest).digest()


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
            connection.execute("ROLLBACK")
        raise


def _unreadable(path: Path, error: sqlite3.Error) -> LedgerError:
    """SQLite reports a file that cannot be opened in other words than a damaged one."""
    if isinstance(error, sqlite3.OperationalError):
        return LedgerError(f"cannot open the ledger {path}: {error}")
    return broken(path, str(error))
