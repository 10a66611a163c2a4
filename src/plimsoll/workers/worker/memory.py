"""Memory of a worker: measured, and returned to the system when it was freed.

Nothing here runs on the event loop, and nothing collects garbage: the memory of a ticket is freed
by its last reference. The C library keeps freed memory until it is told to return it.
"""

import ctypes
import os
import threading
from collections.abc import Callable

__all__ = ["MemoryTrimmer", "find_trim", "keep_freed", "rss_mb"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE = 32 << 20
_TRIM_ABOVE = 256 << 20


def rss_mb() -> float:
    """The resident memory of this process in MB."""
    # Opened each time, with a plain descriptor: this runs twice a second for days.
    descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, 128).split()[1]) * _PAGE / (1 << 20)
    finally:
        os.close(descriptor)


def find_trim(libc: ctypes.CDLL | None = None) -> Callable[[], None] | None:
    """The function that returns freed memory to the system; None if the C library has none."""
    try:
        malloc_trim = (libc or ctypes.CDLL(None)).malloc_trim
    except (AttributeError, OSError):
        return None  # musl has none, and returns memory by itself
    malloc_trim.argtypes = [ctypes.c_size_t]
    malloc_trim.restype = ctypes.c_int

    def trim() -> None:
        malloc_trim(0)  # releases the GIL, as every call through `CDLL`

    return trim


def keep_freed(libc: ctypes.CDLL | None = None) -> None:
    """Keep freed memory for reuse; `trim` returns it to the system later.

    Bodies of megabytes are allocated and freed with every turn: pages returned at once would be
    faulted in again for the next, which costs a fifth of a turn.
    """
    try:
        mallopt = (libc or ctypes.CDLL(None)).mallopt
    except (AttributeError, OSError):
        return  # another C library
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, _TRIM_ABOVE)


_GROWN_MB = 16.0
"""Growth in MB since the last trim that justifies another one, even if no ticket has ended."""


class MemoryTrimmer:
    """Trims memory in a thread. The heartbeat thread calls it and is never blocked by it."""

    def __init__(
        self, trim: Callable[[], None] | None, *, every: float, limit_mb: int | None
    ) -> None:
        self._trim = trim
        self._every = every
        self._limit = limit_mb
        self._thread: threading.Thread | None = None
        self._at = 0.0
        self._ended = 0
        self._rss = 0.0
        self._tried = False
        self.full = False
        """True once memory was above its limit after a trim."""

    def attend(self, *, now: float, rss: float, ended: int) -> None:
        """Check the memory: `rss` in MB, `ended` the number of tickets that have ended."""
        over = self._limit is not None and rss > self._limit
        if self._busy:
            return
        if over:
            # Freed memory is no reason for a replacement: trim first, then check again.
            self.full = self.full or self._tried or self._trim is None
        if (over and not self._tried) or (
            now >= self._at + self._every and self._freed(rss, ended)
        ):
            self._begin(now, rss, ended)
        self._tried = over

    @property
    def _busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _freed(self, rss: float, ended: int) -> bool:
        return ended != self._ended or rss > self._rss + _GROWN_MB

    def _begin(self, now: float, rss: float, ended: int) -> None:
        self._at, self._rss, self._ended = now, rss, ended
        if self._trim is None:
            return
        self._thread = threading.Thread(target=self._trim, name="memory-trimmer", daemon=True)
        self._thread.start()
