"""Connections to the file of a ledger, which is looked at by hand before the first of them.

Never beside one: closing any descriptor of a file drops every POSIX lock that this process has
on it, those of SQLite too, which does not take them again. Whoever else reads the file then takes
itself for its last user, and removes the log that this process goes on writing to.
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
    """One of this process, known until it is closed."""

    file: tuple[int, int] | None = None
    """Which file it is of, by device and number."""

    def close(self) -> None:
        super().close()
        with _opening:
            _open.discard(self)


_open: weakref.WeakSet[Connection] = weakref.WeakSet()
_opening = threading.Lock()
"""From the look to the connection: another thread's must not come between."""


def connect(path: Path, mode: str) -> Connection:
    """Open what is there. What is no database, or not all of one, is refused untouched."""
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
    """A new, empty file."""
    return _connect(path, "rwc")


def broken(path: Path, why: str) -> LedgerError:
    """What is said of a file that is not whole."""
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
    """Refuse what is no database, or not all of one, before SQLite opens it."""
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
    # With a log beside it the missing part may be in there: a crash leaves that, and it is whole.
    if not has_log and size < pages * (page if page > 1 else 65536):
        raise broken(path, "its end is missing")


def _cannot_open(path: Path, why: object) -> LedgerError:
    return LedgerError(f"cannot open the ledger {path}: {why}")
