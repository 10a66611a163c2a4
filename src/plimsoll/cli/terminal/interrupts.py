"""Ctrl-C, SIGTERM and the end of the terminal: the first ends a run in order, the second at once.

After the first signal the run is cancelled and has `GRACE` seconds to clean up. What has
not ended by then is left to the end of the process, which a sandbox of this host never outlives.
Where sandboxes would, as on a Docker engine, it has `LONG_GRACE` seconds, and what it does is said.

A run that can drain is asked to by the first signal, and cancelled by the second; a third ends
the process itself. A terminal that is closed is one signal, however often it is sent, and none
under nohup.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupts", "RemoteSandboxes"]

GRACE = 4.0
LONG_GRACE = 40.0
SHOW_CURSOR = b"\x1b[?25h\n"


@dataclass(frozen=True, slots=True)
class RemoteSandboxes:
    """The sandboxes of a run that do not end with this process."""

    run: str
    say: Callable[[str], None]

    @property
    def begin(self) -> str:
        return f"interrupted: removing the sandboxes of {self.run}; Ctrl-C again leaves them there"

    @property
    def left(self) -> str:
        return f"sandboxes may be left: `plimsoll clean {self.run}` removes them"


class Interrupts:
    """Runs a coroutine until it ends or a signal comes. `signal` says which one came."""

    def __init__(
        self, drain: Callable[[], bool] | None = None, outliving: RemoteSandboxes | None = None
    ) -> None:
        """`drain` asks a run to end in order; False where there is nothing to drain yet."""
        self.signal: int | None = None
        self._drain = drain
        self._outliving = outliving
        self._grace = GRACE if outliving is None else LONG_GRACE
        self._runner = asyncio.Runner()
        self._abandoned = False
        self._cancelled: float | None = None
        """Since when."""
        self._before: dict[int, Any] = {}
        self._stop: Callable[[], None] = lambda: None

    @property
    def exit_code(self) -> int | None:
        return None if self.signal is None else 128 + self.signal

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._abandoned and self.exit_code is not None:
            # Closing the loop would wait for what did not end in time.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.exit_code)
        self._runner.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run `main`. An error of its own is raised; an interruption is only noted."""
        self._runner.run(self._supervise(main))

    async def _supervise(self, main: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(main)
        stopped = asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set) and None
        if self._cancelled is not None:
            stopped.set()
        waiting = loop.create_task(stopped.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not task.done():
            task.cancel()
            if self._outliving is not None:
                self._outliving.say(self._outliving.begin)
            await asyncio.wait({task}, timeout=self._grace)
        if not task.done():
            self._abandoned = True
            if self._outliving is not None:
                self._outliving.say(self._outliving.left)
        elif not task.cancelled():
            task.result()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self.signal is not None:
            return
        if self._cancelled is not None:
            # Who asks twice by a program, as `plimsoll stop --now`, need not know that the first
            # was enough: within its grace it cleans up.
            if number != signal.SIGINT and time.monotonic() < self._cancelled + self._grace:
                return
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR)
            if self._outliving is not None:
                os.write(2, f"{self._outliving.left}\n".encode())
            os._exit(128 + number)
        self.signal = number
        drain, self._drain = self._drain, None
        if drain is None or not drain():
            self._cancelled = time.monotonic()
            self._stop()
