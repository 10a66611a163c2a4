"""What a worker takes of its host's memory, and what it gives back."""

import ctypes
import os
from collections.abc import Callable

__all__ = ["find_trim", "keep_freed", "rss_mb"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE = 32 << 20
_KEPT = 256 << 20


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


def keep_freed(libc: ctypes.CDLL | None = None) -> None:
    """Let freed memory be used again before it goes back to the system, which `trim` sees to.

    Bodies of megabytes come and go with every turn: pages given back at once are all faulted in
    again for the next, which costs a fifth of a turn.
    """
    try:
        mallopt = (libc or ctypes.CDLL(None)).mallopt
    except (AttributeError, OSError):
        return  # a C library with other ways
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)
