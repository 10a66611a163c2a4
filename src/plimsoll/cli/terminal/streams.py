"""Where a command writes. No run ends because nobody reads what it says any more."""

import contextlib
import errno
import io
import os
from collections.abc import Generator
from typing import IO, Any, TextIO, cast

__all__ = ["OutputError", "checked_stream", "drop_rest", "lossy_stream"]

_GONE = (errno.EPIPE, errno.EIO)
"""What a pipe without a reader says, and a terminal that was closed."""


class OutputError(OSError):
    """Standard output that cannot be written, as on a disk that is full."""


class _Heard:
    """A stream of text or bytes. That it cannot be written is told from failures of files."""

    def __init__(self, stream: IO[Any]) -> None:
        self._stream = stream

    def write(self, text: str | bytes) -> int:
        with _telling():
            return self._stream.write(text)

    def flush(self) -> None:
        with _telling():
            self._stream.flush()

    @property
    def buffer(self) -> "_Heard":
        return _Heard(cast("TextIO", self._stream).buffer)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _telling() -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read it has gone, and misses nothing
    except OSError as error:
        raise OutputError(error.errno, error.strerror) from error


class _Unheard:
    """A stream whose reader may go. What cannot be written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if error.errno in _GONE:
            with contextlib.suppress(OSError):
                drop_rest(self._stream.fileno())

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def checked_stream(stream: TextIO) -> TextIO:
    """The stream, so that `OutputError` is raised where it cannot be written. What its encoding
    does not have is a question mark."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return cast("TextIO", _Heard(cast("IO[Any]", stream)))


def drop_rest(descriptor: int) -> None:
    """What is in a buffer and cannot be written goes nowhere: Python would try it once more at its
    end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def lossy_stream(stream: TextIO) -> TextIO:
    """The stream, so that writing to it never fails."""
    return cast("TextIO", _Unheard(stream))
