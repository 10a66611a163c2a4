"""Background tasks: they are not awaited, and unexpected exceptions are reported."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["BackgroundTasks"]

_log = logging.getLogger(__name__)


class BackgroundTasks:
    """A set of background tasks. `on_fault` gets a message for each unexpected exception."""

    def __init__(self, on_fault: Callable[[str], None]) -> None:
        self._on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def wait_any(self, timeout: float) -> bool:
        """Wait until any task has ended. Returns False on timeout."""
        done, _ = await asyncio.wait(
            self._tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)

    async def wait_all(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a bug in the pool", exc_info=error)
            self._on_fault(f"a bug in the pool: {type(error).__name__}: {error}")
