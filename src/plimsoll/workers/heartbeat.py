"""The thread that says that a worker lives, whatever its loop is busy with.

It does not wait for the loop, and says how late the loop is: so a busy worker is not taken for
a dead one, and a hung one is not taken for a busy one. It also sees that the run is gone, and
makes sure that the worker does not outlive it, even where the loop never comes round again.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from plimsoll.workers.engines.protocol import Credentials
from plimsoll.workers.lag import Pulse
from plimsoll.workers.line import BeatLine
from plimsoll.workers.memory import rss_mb
from plimsoll.workers.messages import Beat
from plimsoll.workers.upkeep import Upkeep

__all__ = ["Heart", "Load"]

_CLEAN_UP_SECONDS = 10.0
"""For a worker whose run is gone. Whoever starts next reaps what it could not clean up."""


@dataclass(slots=True)
class Load:
    """What a worker is at. Changed by its loop, read by its heart."""

    running: int = 0
    ended: int = 0
    leaving: bool = False


class Heart:
    """Beats from its own thread, over its own connection, until it is stopped."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        seconds: float,
        pulse: Pulse,
        upkeep: Upkeep,
        load: Load,
        on_broken: Callable[[], object],
    ) -> None:
        self._line = BeatLine(credentials)
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
