"""JSON lines: reads files of one JSON object per line, and appends to them.

Appends are in order and off the event loop. A run directory may be on a file system that takes
seconds to answer, and the loop that hands out tickets must not wait for it. So lines are queued
and written by a thread, all queued lines in one write. A line is written when its `write`
returns.
"""

import asyncio
import contextlib
import itertools
import logging
import os
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.core.file_systems import disk_full_reason

__all__ = ["LineWriter", "read_lines", "writing"]

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def read_lines(path: Path, kind: type[_T]) -> Iterator[_T]:
    """The lines of a file, if it exists. Damaged lines are logged and skipped."""
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                _log.warning("%s:%d is damaged and skipped: %s", path, number, error)


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    line: bytes
    written: "asyncio.Future[None]"


class LineWriter:
    """Appends lines in the order of the calls. After a failed write it refuses further lines."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._work: asyncio.Task[None] | None = None
        self._failed: UsageError | None = None

    async def write(self, path: Path, row: msgspec.Struct) -> None:
        """Append a line; returns when it is in the file.

        The line is queued before the first await, and stays queued if the caller is cancelled.
        """
        if self._failed is not None:
            raise UsageError(str(self._failed))
        loop = asyncio.get_running_loop()
        entry = _Entry(path, msgspec.json.encode(row) + b"\n", loop.create_future())
        self._entries.append(entry)
        if self._work is None:
            self._work = loop.create_task(self._write_all())
        await asyncio.shield(entry.written)

    async def flush(self) -> None:
        """Wait until the queue is empty: every line is written or has failed."""
        if self._work is not None:
            await asyncio.shield(self._work)

    async def _write_all(self) -> None:
        try:
            while self._entries:
                batch = list(self._entries)
                self._entries.clear()
                for path, entries in itertools.groupby(batch, key=lambda entry: entry.path):
                    await self._write(path, list(entries))
        finally:
            self._work = None

    async def _write(self, path: Path, entries: list[_Entry]) -> None:
        if self._failed is None:
            try:
                await asyncio.to_thread(_append, path, b"".join(entry.line for entry in entries))
            except UsageError as error:
                self._failed = error
        for entry in entries:
            if entry.written.done():
                continue
            if self._failed is None:
                entry.written.set_result(None)
            else:
                entry.written.set_exception(UsageError(str(self._failed)))
                entry.written.exception()  # a cancelled caller does not retrieve the exception


def _append(path: Path, lines: bytes) -> None:
    """Append to a file that is opened and closed each time, so that a crash loses no line."""
    with writing(path), path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            left = memoryview(lines)
            while left:
                left = left[file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(end)  # leave no partial line
            raise


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn an OSError into a one-line error with a remedy."""
    try:
        yield
    except OSError as error:
        room = "free some space or " if disk_full_reason(error) else ""
        raise UsageError(
            f"cannot write {error.filename or path}: {error.strerror or error}; "
            f"{room}choose another folder with --out"
        ) from error
