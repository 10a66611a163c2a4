"""Heartbeats of a worker, sent by a thread, and the lag of its event loop.

The thread does not wait for the event loop, and each heartbeat reports the lag of the loop. So a
busy worker does not look dead, and a hung one does not look busy. The thread also detects that the
run is gone, and ends the worker even if its event loop is blocked forever.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

from plimsoll.workers.engines.protocol import Credentials
from plimsoll.workers.messages import Beat
from plimsoll.workers.worker.connection import HeartbeatConnection
from plimsoll.workers.worker.memory import MemoryTrimmer, rss_mb
from plimsoll.workers.worker.running_tickets import Load

__all__ = ["Heartbeat", "LoopLag"]

_TICK = 0.05
_LOOK_EVERY = 10
"""Ticks between counts of live objects."""


class LoopLag:
    """Measures the lag of a loop. Made and stopped on it; its figures are read by any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + _TICK
        self._ticks = 0
        self._slowest = 0.0
        self._count: Callable[[], dict[str, int]] | None = None
        self._handle = self._loop.call_at(self._due, self._tick)
        self.counts: dict[str, int] = {}
        """Live objects by kind, as last counted on the loop. Replaced, never mutated."""

    def watch(self, count: Callable[[], dict[str, int]]) -> None:
        """Count live objects on the loop from now on."""
        self._count = count

    def stop(self) -> None:
        self._handle.cancel()

    @property
    def lag(self) -> float:
        """Seconds by which the loop is late."""
        return max(0.0, time.monotonic() - self._due)

    def take_slowest(self) -> float:
        """Return the longest lag since the last call."""
        slowest, self._slowest = max(self._slowest, self.lag), 0.0
        return slowest

    def _tick(self) -> None:
        self._slowest = max(self._slowest, self.lag)
        self._ticks += 1
        if self._count is not None and self._ticks % _LOOK_EVERY == 0:
            self.counts = self._count()
        self._due = self._loop.time() + _TICK
        self._handle = self._loop.call_at(self._due, self._tick)


_CLEAN_UP_SECONDS = 10.0
"""Time to clean up after the run is gone. The next worker removes anything left over."""


class Heartbeat:
    """Sends heartbeats from its own thread, over its own connection, until it is stopped."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        seconds: float,
        loop_lag: LoopLag,
        trimmer: MemoryTrimmer,
        load: Load,
        on_broken: Callable[[], object],
    ) -> None:
        self._connection = HeartbeatConnection(credentials)
        self._seconds = seconds
        self._loop_lag = loop_lag
        self._trimmer = trimmer
        self._load = load
        self._on_broken = on_broken
        self._rss = 0.0
        """The last known RSS in MB."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop sending heartbeats. Waits for the thread."""
        self._stopped.set()
        self._connection.wake()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._connection.send(self._beat())
            if self._connection.broken(within=self._seconds):
                self._end_worker()
                return

    def _beat(self) -> Beat:
        load, trimmer = self._load, self._trimmer
        # Without a free file descriptor or thread the worker is still alive, and still reports it.
        with contextlib.suppress(OSError, RuntimeError, MemoryError):
            self._rss = rss_mb()
            trimmer.attend(now=time.monotonic(), rss=self._rss, ended=load.ended)
        return Beat(
            rss_mb=self._rss,
            lag=self._loop_lag.lag,
            slowest=self._loop_lag.take_slowest(),
            counts=self._loop_lag.counts,
            full=trimmer.full or load.leaving,
        )

    def _end_worker(self) -> None:
        """End the worker, since the run is gone: notify the loop, and exit if it takes too long."""
        self._on_broken()
        if not self._stopped.wait(_CLEAN_UP_SECONDS):
            # The reader of standard error may be gone as well.
            with contextlib.suppress(OSError):
                os.write(2, b"the run is gone, and this worker did not clean up in time\n")
            os._exit(1)
