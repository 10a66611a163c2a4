"""One thread for all that the learner does, and one for each sink of figures.

Torch keeps a pool of threads for each thread that computes: another thread each time would
leave a pool behind each. It is a daemon, so that a step that takes minutes, or a sink that
hangs, does not hold up the end of a process.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

__all__ = ["DedicatedThread"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Work = Callable[[], None]


class DedicatedThread:
    """Runs one call after another, each awaited by the event loop that asked for it."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._asked = 0
        self._done = 0
        """Changed by the thread alone, as the other is by the event loop."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a call is under way that nobody may be waiting for any more."""
        return self._asked > self._done

    async def do(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What `call` returns or raises. Cancelled, the call itself goes on to its end."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def work() -> None:
            result: object = None
            error: BaseException | None = None
            try:
                result = call(*args, **kwargs)
            except BaseException as raised:  # noqa: BLE001 - carried over to whoever awaits it
                error = raised
            self._done += 1  # before anybody hears of it
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, future, result, error)

        self._asked += 1
        self._work.put(work)
        return await future

    def close(self) -> None:
        """No more calls. One that is under way is not waited for."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _settle(future: "asyncio.Future[_T]", result: object, error: BaseException | None) -> None:
    if future.done():  # whoever asked was cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(cast("_T", result))
