"""Single flight: concurrent calls for the same work share one execution in this process."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from plimsoll.core.cancellation import run_to_completion
from plimsoll.sandboxes.protocol import OnOutput, Stream

__all__ = ["SingleFlight"]

_T = TypeVar("_T")
_MAX_REPLAY = 4 << 20
"""Bytes of past output that a late caller receives."""


class _Call(Generic[_T]):
    """Work in flight: its waiters and its output so far."""

    def __init__(self) -> None:
        self.task: asyncio.Task[_T] | None = None
        self.waiting = 0
        self._listeners: list[OnOutput] = []
        self._output: deque[tuple[Stream, bytes]] = deque()
        self._size = 0

    def emit(self, stream: Stream, data: bytes) -> None:
        self._output.append((stream, data))
        self._size += len(data)
        while self._size > _MAX_REPLAY:
            self._size -= len(self._output.popleft()[1])
        for listener in self._listeners:
            listener(stream, data)

    def listen(self, listener: OnOutput) -> None:
        for stream, data in self._output:
            listener(stream, data)
        self._listeners.append(listener)

    def leave(self, listener: OnOutput | None) -> None:
        if listener is not None:
            self._listeners.remove(listener)


class SingleFlight(Generic[_T]):
    """Work by key. It continues while at least one caller waits for it."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call[_T]] = {}

    async def run(
        self,
        key: str,
        work: Callable[[OnOutput], Awaitable[_T]],
        on_output: OnOutput | None = None,
    ) -> _T:
        """Start the work, or join the call in flight. All callers get its output and result."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call[_T]()
            call.task = asyncio.ensure_future(_run(work, call.emit))
            call.task.add_done_callback(lambda _: self._forget(key, call))
        assert call.task is not None
        if on_output is not None:
            call.listen(on_output)
        call.waiting += 1
        try:
            await asyncio.wait([call.task])
            return call.task.result()
        finally:
            call.waiting -= 1
            call.leave(on_output)
            if not call.waiting and not call.task.done():
                # Later callers start the work again, also while this task still ends.
                self._forget(key, call)
                call.task.cancel()
                await run_to_completion(asyncio.wait([call.task]))

    def _forget(self, key: str, call: _Call[_T]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]


async def _run(work: Callable[[OnOutput], Awaitable[_T]], emit: OnOutput) -> _T:
    return await work(emit)
