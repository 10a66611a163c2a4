"""How long a worker's loop takes to come round, as another thread sees it."""

import asyncio
import time
from collections.abc import Callable

__all__ = ["Pulse"]

_TICK = 0.05
_LOOK_EVERY = 10
"""Ticks between looks at what is alive."""


class Pulse:
    """Ticks on the loop. Made and stopped there; its figures are read from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + _TICK
        self._ticks = 0
        self._slowest = 0.0
        self._count: Callable[[], dict[str, int]] | None = None
        self._handle = self._loop.call_at(self._due, self._tick)
        self.counts: dict[str, int] = {}
        """What is alive by kind, as the loop last saw it. Replaced, never changed."""

    def watch(self, count: Callable[[], dict[str, int]]) -> None:
        """From now on look at what is alive, on the loop."""
        self._count = count

    def stop(self) -> None:
        self._handle.cancel()

    @property
    def lag(self) -> float:
        """For how many seconds the loop has been late."""
        return max(0.0, time.monotonic() - self._due)

    def take_slowest(self) -> float:
        """The longest lag since this was last asked."""
        slowest, self._slowest = max(self._slowest, self.lag), 0.0
        return slowest

    def _tick(self) -> None:
        self._slowest = max(self._slowest, self.lag)
        self._ticks += 1
        if self._count is not None and self._ticks % _LOOK_EVERY == 0:
            self.counts = self._count()
        self._due = self._loop.time() + _TICK
        self._handle = self._loop.call_at(self._due, self._tick)
