"""A stopwatch: a clock that can be paused, with timers and time limits that pause with it."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["Stopwatch", "TimeLimit", "Timer", "seconds_since"]


def seconds_since(mark: float) -> float:
    """The seconds since a reading of `time.perf_counter`, rounded for a report."""
    return round(time.perf_counter() - mark, 4)


class Stopwatch:
    """Counts seconds since its creation, except while it is stopped."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        """The time of the last start or stop."""
        self._running_seconds = 0.0
        self._stopped_seconds = 0.0
        self._stopped = False
        self._timers: set[Timer] = set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    @property
    def seconds(self) -> float:
        """Seconds spent running."""
        return (
            self._running_seconds
            if self._stopped
            else self._running_seconds + time.monotonic() - self._since
        )

    @property
    def stopped_seconds(self) -> float:
        """Seconds spent stopped."""
        return (
            self._stopped_seconds + time.monotonic() - self._since
            if self._stopped
            else self._stopped_seconds
        )

    def stop(self) -> None:
        """Stop the clock. Idempotent."""
        if self._stopped:
            return
        now = time.monotonic()
        self._running_seconds += now - self._since
        self._since, self._stopped = now, True
        for timer in self._timers:
            timer.set()

    def start(self) -> None:
        """Start the clock again. Idempotent."""
        if not self._stopped:
            return
        now = time.monotonic()
        self._stopped_seconds += now - self._since
        self._since, self._stopped = now, False
        for timer in self._timers:
            timer.set()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> "Timer":
        """Call back after this many more seconds of running."""
        return self._add(Timer(self, seconds, callback, stopped=False))

    def call_when_stopped(self, seconds: float, callback: Callable[[], None]) -> "Timer":
        """Call back after this many seconds of being stopped without a break."""
        return self._add(Timer(self, seconds, callback, stopped=True))

    def limit(self, seconds: float | None, *, stopped: float) -> "TimeLimit":
        """A time limit for a block of code: see `TimeLimit`."""
        return TimeLimit(self, seconds, stopped)

    def forget(self, timer: "Timer") -> None:
        self._timers.discard(timer)

    def _add(self, timer: "Timer") -> "Timer":
        self._timers.add(timer)
        timer.set()
        return timer


class Timer:
    """A callback that is due after some seconds of running, or of being stopped."""

    __slots__ = ("_callback", "_due", "_handle", "_seconds", "_stopped", "_watch")

    def __init__(
        self, watch: Stopwatch, seconds: float, callback: Callable[[], None], *, stopped: bool
    ) -> None:
        self._watch = watch
        self._seconds = seconds
        self._due = watch.seconds + seconds
        self._callback = callback
        self._stopped = stopped
        self._handle: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """Schedule the remaining time, or none if the stopwatch is not in the state that counts."""
        self._clear()
        if self._watch.is_stopped == self._stopped:
            left = self._seconds if self._stopped else max(0.0, self._due - self._watch.seconds)
            self._handle = asyncio.get_running_loop().call_later(left, self._fire)

    def cancel(self) -> None:
        self._clear()
        self._watch.forget(self)

    def _clear(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self.cancel()
        self._callback()


class TimeLimit:
    """Like `asyncio.timeout`, on a stopwatch: raises `TimeoutError` out of its block.

    The time is over once the stopwatch has run for `seconds` (None: never), or has been stopped
    for `stopped` seconds without a break.
    """

    def __init__(self, watch: Stopwatch, seconds: float | None, stopped: float) -> None:
        self._watch = watch
        self._seconds = seconds
        self._stopped = stopped
        self._timeout = asyncio.timeout(None)
        self._timers: list[Timer] = []
        self.overdue = False
        """Whether it expired because the stopwatch was stopped for too long."""

    def expired(self) -> bool:
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._timers.append(self._watch.call_when_stopped(self._stopped, self._give_up))
        if self._seconds is not None:
            self._timers.append(self._watch.call_later(self._seconds, self._end))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await self._timeout.__aexit__(exc_type, exc, traceback)

    def _end(self) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time())

    def _give_up(self) -> None:
        self.overdue = True
        self._end()
