"""Keeps a worker's memory flat: what was freed goes back to the system, beside the loop.

Nothing here runs on the event loop, and nothing collects garbage: what a ticket held is freed
by its last reference. Freed memory stays with the C library until it is told to give it back.
"""

import threading
from collections.abc import Callable

__all__ = ["Upkeep"]

_GROWN_MB = 16.0
"""Growth since the last time that is worth a look even where no ticket has ended."""


class Upkeep:
    """Called by the beating thread, which it never holds up."""

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
        """Whether it has been above its limit with nothing left to give back."""
        self.trims = 0

    def attend(self, *, now: float, rss: float, ended: int) -> None:
        """Look at the memory: `rss` is what is taken, `ended` how many tickets have ended."""
        over = self._limit is not None and rss > self._limit
        if self._busy:
            return
        if over:
            # Freed memory is no reason to be replaced: first give it back, then look again.
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
        self.trims += 1
        self._thread = threading.Thread(target=self._trim, name="upkeep", daemon=True)
        self._thread.start()
