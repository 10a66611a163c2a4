"""Where a command writes. No run ends because nobody reads what it says any more."""

import contextlib
import errno
import os
from typing import TextIO, cast

__all__ = ["unheard"]

_GONE = (errno.EPIPE, errno.EIO)
"""What a pipe without a reader says, and a terminal that was closed."""


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
            # For good: what is in its buffer would be tried again, at the latest when Python ends.
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def unheard(stream: TextIO) -> TextIO:
    """The stream, so that writing to it never fails."""
    return cast("TextIO", _Unheard(stream))
