"""Connections to a ledger's SQLite file, which is checked before the first connection.

Never check it beside an open connection: closing any descriptor of a file drops every POSIX lock
of this process on it, SQLite's included, and SQLite does not take them again. Another reader then
believes to be the last user, and removes the log that this process still writes to.
"""

import os
import sqlite3
import threading
import weakref
from pathlib import Path

from plimsoll.core.errors import LedgerError

__all__ = ["Connection", "broken", "connect", "create"]

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
    """Open an existing file. Refuses a file that is no database, or a truncated one, untouched."""
    with _opening:
        try:
            found = path.stat()
        except OSError as error:
            raise _cannot_open(path, error.strerror) from None
        file = found.st_dev, found.st_ino
        if all(one.file != file for one in _open):
            _look_at(path)
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


def _look_at(path: Path) -> None:
    """Refuse a file that is no database, or a truncated one, before SQLite opens it."""
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
