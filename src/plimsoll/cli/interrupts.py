"""Ctrl-C and SIGTERM: the first ends a run in order, the second at once.

After the first signal the run is cancelled and has `GRACE` seconds to clean up. What has
not ended by then is left to the end of the process: a sandbox never outlives it.

A run that can drain is asked to by the first signal, and cancelled by the second; a third ends
the process itself.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupts"]

GRACE = 4.0
SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupts:
    """Runs a coroutine until it ends or a signal comes. `signal` says which one came."""

    def __init__(self, drain: Callable[[], bool] | None = None) -> None:
        """`drain` asks a run to end in order; False where there is nothing to drain yet."""
        self.signal: int | None = None
        self._drain = drain
        self._runner = asyncio.Runner()
        self._abandoned = False
        self._cancelled = False
        self._before: dict[int, Any] = {}
        self._stop: Callable[[], None] = lambda: None

    @property
    def exit_code(self) -> int | None:
        return None if self.signal is None else 128 + self.signal

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
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
        if self._cancelled:
            stopped.set()
        waiting = loop.create_task(stopped.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE)
        if not task.done():
            self._abandoned = True
        elif not task.cancelled():
            task.result()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._cancelled:
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR)
            os._exit(128 + number)
        self.signal = number
        drain, self._drain = self._drain, None
        if drain is None or not drain():
            self._cancelled = True
            self._stop()
