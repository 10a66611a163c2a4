"""How long a worker's loop takes to come round, as another thread sees it.

The thread that says that a worker lives, whatever its loop is busy with.

It does not wait for the loop, and says how late the loop is: so a busy worker is not taken for
a dead one, and a hung one is not taken for a busy one. It also sees that the run is gone, and
makes sure that the worker does not outlive it, even where the loop never comes round again.
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
"""Ticks between looks at what is alive."""


class LoopLag:
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


_CLEAN_UP_SECONDS = 10.0
"""For a worker whose run is gone. Whoever starts next reaps what it could not clean up."""


class Heartbeat:
    """Beats from its own thread, over its own connection, until it is stopped."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        seconds: float,
        pulse: LoopLag,
        upkeep: MemoryTrimmer,
        load: Load,
        on_broken: Callable[[], object],
    ) -> None:
        self._line = HeartbeatConnection(credentials)
        self._seconds = seconds
        self._pulse = pulse
        self._upkeep = upkeep
        self._load = load
        self._on_broken = on_broken
        self._rss = 0.0
        """As it was last seen."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Beat no more. Waits for the thread."""
        self._stopped.set()
        self._line.wake()
        self._thread.join()
        self._line.close()

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            self._line.send(self._beat(number))
            if self._line.broken(within=self._seconds):
                self._outlive_nobody()
                return

    def _beat(self, number: int) -> Beat:
        load, upkeep = self._load, self._upkeep
        # Without a free descriptor, or room for a thread, it lives all the same, and says so.
        with contextlib.suppress(OSError, RuntimeError, MemoryError):
            self._rss = rss_mb()
            upkeep.attend(now=time.monotonic(), rss=self._rss, ended=load.ended)
        return Beat(
            number=number,
            rss_mb=self._rss,
            lag=self._pulse.lag,
            slowest=self._pulse.take_slowest(),
            running=load.running,
            counts=self._pulse.counts,
            full=upkeep.full or load.leaving,
        )

    def _outlive_nobody(self) -> None:
        """The run is gone: the loop is told, and is not waited for any longer than this."""
        self._on_broken()
        if not self._stopped.wait(_CLEAN_UP_SECONDS):
            # Whoever read what it prints may be gone as well.
            with contextlib.suppress(OSError):
                os.write(2, b"the run is gone, and this worker did not clean up in time\n")
            os._exit(1)
