"""One piece of work for all who want its result at the same time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from plimsoll.core.waiting import to_the_end
from plimsoll.sandboxes.protocol import OnOutput, Stream

__all__ = ["Flights"]

_T = TypeVar("_T")
_KEPT = 4 << 20
"""Bytes of output that those who come later still get."""


class _Flight(Generic[_T]):
    """Work under way: who waits for it, and what it has said so far."""

    def __init__(self) -> None:
        self.task: asyncio.Task[_T] | None = None
        self.waiting = 0
        self._listeners: list[OnOutput] = []
        self._said: deque[tuple[Stream, bytes]] = deque()
        self._size = 0

    def say(self, stream: Stream, data: bytes) -> None:
        self._said.append((stream, data))
        self._size += len(data)
        while self._size > _KEPT:
            self._size -= len(self._said.popleft()[1])
        for listener in self._listeners:
            listener(stream, data)

    def listen(self, listener: OnOutput) -> None:
        for stream, data in self._said:
            listener(stream, data)
        self._listeners.append(listener)

    def leave(self, listener: OnOutput | None) -> None:
        if listener is not None:
            self._listeners.remove(listener)


class Flights(Generic[_T]):
    """Work by key. It goes on while anybody waits for it, whoever began it."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[_T]] = {}

    @property
    def keys(self) -> frozenset[str]:
        """What is being worked on."""
        return frozenset(self._flights)

    async def join(
        self,
        key: str,
        work: Callable[[OnOutput], Awaitable[_T]],
        on_output: OnOutput | None = None,
    ) -> _T:
        """Begin the work, or wait for the one that is under way. All get its output and result."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight[_T]()
            flight.task = asyncio.ensure_future(_run(work, flight.say))
            flight.task.add_done_callback(lambda _: self._flights.pop(key, None))
        assert flight.task is not None
        if on_output is not None:
            flight.listen(on_output)
        flight.waiting += 1
        try:
            await asyncio.wait([flight.task])
            return flight.task.result()
        finally:
            flight.waiting -= 1
            flight.leave(on_output)
            if not flight.waiting and not flight.task.done():
                # Whoever comes from now on begins anew.
                self._flights.pop(key, None)
                flight.task.cancel()
                await to_the_end(asyncio.wait([flight.task]))


async def _run(work: Callable[[OnOutput], Awaitable[_T]], say: OnOutput) -> _T:
    return await work(say)
