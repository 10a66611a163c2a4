"""What a worker takes of its host's memory, and what it gives back."""

import ctypes
import os
from collections.abc import Callable

__all__ = ["find_trim", "rss_mb"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


def rss_mb() -> float:
    """The memory of this process that is in RAM."""
    # Read anew each time by a plain descriptor: this runs twice a second for days.
    descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, 128).split()[1]) * _PAGE / (1 << 20)
    finally:
        os.close(descriptor)


def find_trim(libc: ctypes.CDLL | None = None) -> Callable[[], None] | None:
    """What gives freed memory back to the system; None where the C library has no such thing."""
    try:
        malloc_trim = (libc or ctypes.CDLL(None)).malloc_trim
    except (AttributeError, OSError):
        return None  # musl has none, and gives back by itself
    malloc_trim.argtypes = [ctypes.c_size_t]
    malloc_trim.restype = ctypes.c_int

    def trim() -> None:
        malloc_trim(0)  # without the interpreter's lock, as every call through `CDLL`

    return trim
