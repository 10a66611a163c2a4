"""Writes a trajectory's file, exchange by exchange, and closes it at once and for good."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from plimsoll.core.errors import TrajectoryError
from plimsoll.trajectories.frames import NAME, PART, compress
from plimsoll.trajectories.records import Closed, Opened, Record

__all__ = ["Writer"]

_encoder = msgspec.json.Encoder()


class Writer:
    """An open trajectory file. Whatever goes wrong, it holds whole frames up to its length."""

    def __init__(self, folder: Path, opened: Opened) -> None:
        self.path = folder / NAME
        self._part = folder / PART
        self._digest = hashlib.sha256()
        self._records = 0
        self._length = 0
        self._failure = ""
        self._descriptor = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                raise FileExistsError(f"{NAME} is there already")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._part, flags, 0o644)
        except OSError as error:
            raise TrajectoryError(
                f"{folder}: cannot begin a trajectory here ({error}); each session needs a folder "
                "of its own that can be written to"
            ) from error
        self.write([opened])

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def write(self, records: Sequence[Record]) -> None:
        """All of the records, or none of them."""
        if self._failure:
            raise TrajectoryError(self._failure)
        if not self.is_open:
            raise TrajectoryError(f"{self.path}: the trajectory is closed, nothing can be added")
        lines = _encoder.encode_lines(records)
        self._append(compress(lines))
        self._digest.update(lines)
        self._records += len(records)

    def finish(self, ending: str, exchanges: int, detail: str) -> None:
        """Writes the last record. What is left is `seal`."""
        self.write([Closed(ending, exchanges, self._records, self._digest.hexdigest(), detail)])

    def seal(self, blobs: Iterable[Path]) -> Path:
        """Puts everything on the disk itself, then gives the file its name. Takes its time."""
        try:
            for blob in blobs:
                _sync(blob)
            os.fsync(self._descriptor)
            self._part.rename(self.path)
            _sync(self.path.parent)
        except OSError as error:
            self.fail(error)
            raise TrajectoryError(self._failure) from error
        finally:
            self.drop()
        return self.path

    def drop(self) -> None:
        """Lets go of the file as it is."""
        if self.is_open:
            os.close(self._descriptor)
            self._descriptor = -1

    def fail(self, error: OSError) -> str:
        """From now on nothing is written: an exchange that is missing cannot be made up for."""
        self._failure = (
            f"{self._part}: the trajectory cannot be written ({error.strerror or error}); "
            "what was recorded before is readable, the rest of the session is lost"
        )
        return self._failure

    def _append(self, frame: bytes) -> None:
        view = memoryview(frame)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._length)
            raise TrajectoryError(self.fail(error)) from error
        self._length += len(frame)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
