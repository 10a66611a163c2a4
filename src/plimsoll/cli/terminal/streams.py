"""Output streams of a command. A run does not end because its reader has gone."""

import contextlib
import errno
import io
import os
from collections.abc import Generator
from typing import IO, Any, TextIO, cast

__all__ = ["OutputError", "checked_stream", "drop_rest", "lossy_stream"]

_CLOSED = (errno.EPIPE, errno.EIO)
"""The errors of a pipe without a reader and of a closed terminal."""


class OutputError(OSError):
    """Standard output cannot be written, for example because the disk is full."""


class _CheckedStream:
    """A stream of text or bytes that raises `OutputError`, distinct from errors of other files."""

    def __init__(self, stream: IO[Any]) -> None:
        self._stream = stream

    def write(self, text: str | bytes) -> int:
        with _as_output_error():
            return self._stream.write(text)

    def flush(self) -> None:
        with _as_output_error():
            self._stream.flush()

    @property
    def buffer(self) -> "_CheckedStream":
        return _CheckedStream(cast("TextIO", self._stream).buffer)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _as_output_error() -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has gone
    except OSError as error:
        raise OutputError(error.errno, error.strerror) from error


class _LossyStream:
    """A stream whose reader may go away. Output that cannot be written is dropped."""

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
        if error.errno in _CLOSED:
            with contextlib.suppress(OSError):
                drop_rest(self._stream.fileno())

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def checked_stream(stream: TextIO) -> TextIO:
    """Wrap a stream to raise `OutputError` if it cannot be written. Characters outside its
    encoding become question marks."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return cast("TextIO", _CheckedStream(cast("IO[Any]", stream)))


def drop_rest(descriptor: int) -> None:
    """Redirect a descriptor to /dev/null: Python would write its buffer again at exit and fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def lossy_stream(stream: TextIO) -> TextIO:
    """Wrap a stream so that writing never fails."""
    return cast("TextIO", _LossyStream(stream))
