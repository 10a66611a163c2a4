"""An event loop for a program that has none."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

__all__ = ["LoopThread"]

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines in a thread of its own while it is entered. Leaving it ends the thread and
    cancels running coroutines."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._stay()), name=name)
        self._is_up = threading.Event()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and return its result. It is cancelled if this thread is interrupted."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _stay(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._is_up.set()
        await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_up.wait()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
