"""A clock that can be stopped, with timers and time limits that stop with it."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["Stopwatch", "TimeLimit", "Timer"]


class Stopwatch:
    """Counts seconds from its creation on, except while it is stopped."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        """When it was last started or stopped."""
        self._ran = 0.0
        self._stood = 0.0
        self._stopped = False
        self._timers: set[Timer] = set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    @property
    def seconds(self) -> float:
        """Seconds that it has run."""
        return self._ran if self._stopped else self._ran + time.monotonic() - self._since

    @property
    def stopped_seconds(self) -> float:
        """Seconds that it has been stopped."""
        return self._stood + time.monotonic() - self._since if self._stopped else self._stood

    def stop(self) -> None:
        """Does nothing where it is stopped already."""
        if self._stopped:
            return
        now = time.monotonic()
        self._ran += now - self._since
        self._since, self._stopped = now, True
        for timer in self._timers:
            timer.set()

    def go(self) -> None:
        """Does nothing where it runs already."""
        if not self._stopped:
            return
        now = time.monotonic()
        self._stood += now - self._since
        self._since, self._stopped = now, False
        for timer in self._timers:
            timer.set()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> "Timer":
        """Call back once it has run for so many seconds more."""
        return self._add(Timer(self, seconds, callback, stopped=False))

    def call_when_stopped(self, seconds: float, callback: Callable[[], None]) -> "Timer":
        """Call back once it has been stopped for so many seconds without a break."""
        return self._add(Timer(self, seconds, callback, stopped=True))

    def limit(self, seconds: float | None, *, stopped: float) -> "TimeLimit":
        """Bound a block of code: see `TimeLimit`."""
        return TimeLimit(self, seconds, stopped)

    def forget(self, timer: "Timer") -> None:
        self._timers.discard(timer)

    def _add(self, timer: "Timer") -> "Timer":
        self._timers.add(timer)
        timer.set()
        return timer


class Timer:
    """A call that is due after some seconds of running, or of being stopped."""

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
        """The stopwatch was started or stopped: wait for the rest of the time, or not at all."""
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
        """Whether it ended since the stopwatch was stopped for too long."""

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
