"""A dedicated thread: one for all calls of the learner, one for each metrics sink.

Torch keeps a thread pool for each thread that computes, so a new thread for each call would leak
pools. The thread is a daemon: neither a long step nor a hanging sink delays the end of the process.
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
    """Runs one call at a time. Each is awaited on the event loop of its caller."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._submitted = 0
        self._done = 0
        """Only the thread changes it; only the event loop changes `_submitted`."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a call is in progress, even if its caller was cancelled."""
        return self._submitted > self._done

    async def do(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result or the exception of `call`. Cancellation does not interrupt the call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def work() -> None:
            result: object = None
            error: BaseException | None = None
            try:
                result = call(*args, **kwargs)
            except BaseException as raised:  # noqa: BLE001 - raised again in the caller
                error = raised
            self._done += 1  # before the caller can see the result
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is left
                loop.call_soon_threadsafe(_settle, future, result, error)

        self._submitted += 1
        self._work.put(work)
        return await future

    def close(self) -> None:
        """Accept no more calls. Does not wait for a running one."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _settle(future: "asyncio.Future[_T]", result: object, error: BaseException | None) -> None:
    if future.done():  # the caller was cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(cast("_T", result))
