"""Interrupts: Ctrl-C, SIGTERM and a closed terminal. The first one ends a run gracefully.

- The first signal cancels the run, which has `GRACE` seconds to clean up. Local sandboxes end with
  the process at the latest.
- Sandboxes on a Docker daemon outlive the process, so the run has `LONG_GRACE` seconds to remove
  them and prints what it does.
- A run that can drain is drained by the first signal and cancelled by the second. A third one ends
  the process.
- SIGHUP counts once, however often it is sent, and is ignored under nohup.
"""

import asyncio
import os
import shlex
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
    """Sandboxes of a run that outlive this process."""

    run: str
    print: Callable[[str], None]

    @property
    def begin(self) -> str:
        return (
            f"interrupted: removing the sandboxes of {self.run}; press Ctrl-C again to leave them"
        )

    @property
    def left(self) -> str:
        return f"sandboxes may be left; remove them with: plimsoll clean {shlex.quote(self.run)}"


class Interrupts:
    """Runs a coroutine until it ends or a signal arrives. `signal` is that signal."""

    def __init__(
        self, drain: Callable[[], bool] | None = None, sandboxes: RemoteSandboxes | None = None
    ) -> None:
        """`drain` begins to drain the run; it returns False if there is nothing to drain."""
        self.signal: int | None = None
        self._drain = drain
        self._sandboxes = sandboxes
        self._grace = GRACE if sandboxes is None else LONG_GRACE
        self._runner = asyncio.Runner()
        self._abandoned = False
        self._cancelled: float | None = None
        """The time of the cancellation."""
        self._old_handlers: dict[int, Any] = {}
        self._stop: Callable[[], None] = lambda: None

    @property
    def exit_code(self) -> int | None:
        return None if self.signal is None else 128 + self.signal

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._old_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._abandoned and self.exit_code is not None:
            # Closing the loop would wait for tasks that did not end in time.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.exit_code)
        self._runner.close()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run `main`. Raises its errors; an interruption only sets `signal`."""
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
            if self._sandboxes is not None:
                self._sandboxes.print(self._sandboxes.begin)
            await asyncio.wait({task}, timeout=self._grace)
        if not task.done():
            self._abandoned = True
            if self._sandboxes is not None:
                self._sandboxes.print(self._sandboxes.left)
        elif not task.cancelled():
            task.result()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self.signal is not None:
            return
        if self._cancelled is not None:
            # Programs such as `plimsoll stop --now` send a second signal in any case: ignore it
            # during the grace period.
            if number != signal.SIGINT and time.monotonic() < self._cancelled + self._grace:
                return
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR)
            if self._sandboxes is not None:
                os.write(2, f"{self._sandboxes.left}\n".encode())
            os._exit(128 + number)
        self.signal = number
        drain, self._drain = self._drain, None
        if drain is None or not drain():
            self._cancelled = time.monotonic()
            self._stop()
