"""How many bytes of bodies a session may have on their way at once.

Connections cost a client nothing, and each may send a part of a body and stop: what all of them
hold must have a bound, beside that of each.

The handlers that are in a session: who reads a body, who waits, who writes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from plimsoll.gateway.completions import Refusal

__all__ = ["BodyBudget", "Handlers", "session_ended"]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    size: int
    turn: asyncio.Future[None]


class BodyBudget:
    """Room for so many bytes. Who finds none waits, in the order of coming."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[_Waiter] = deque()

    @property
    def taken(self) -> int:
        return self._most - self._left

    @asynccontextmanager
    async def room(self, size: int) -> AsyncGenerator[None]:
        """All of it before a body is read: bodies that are half read would wait for each other."""
        size = min(size, self._most)
        await self._take(size)
        try:
            yield
        finally:
            self._give(size)

    async def _take(self, size: int) -> None:
        if not self._waiting and size <= self._left:
            self._left -= size
            return
        me = _Waiter(size, asyncio.get_running_loop().create_future())
        self._waiting.append(me)
        try:
            await me.turn
        except asyncio.CancelledError:
            if me in self._waiting:
                self._waiting.remove(me)
                self._give(0)  # who came after may need less
            else:
                self._give(size)
            raise

    def _give(self, size: int) -> None:
        self._left += size
        while self._waiting and self._waiting[0].size <= self._left:
            first = self._waiting.popleft()
            self._left -= first.size
            if not first.turn.done():
                first.turn.set_result(None)


log = logging.getLogger(__name__)

HANDLERS_PER_REQUEST = 4
"""Handlers for each request that may wait at once: retries, counts and bodies on their way."""

MAX_FULL_BODIES = 2
"""Bodies of the largest size that may be on their way at once; of smaller ones, as many as fit."""


class Handlers:
    """Counts handlers in and out, and sees them all out at the end."""

    def __init__(self, concurrent: int, body_bytes: int) -> None:
        self.intake = BodyBudget(body_bytes * MAX_FULL_BODIES)
        """What may be on its way of bodies."""
        self.heavy = asyncio.Lock()
        """Held by the body that is decompressed or parsed off the loop: one at a time."""
        self._most = concurrent * HANDLERS_PER_REQUEST
        self._handlers: set[asyncio.Task[object]] = set()
        self._waiting: set[asyncio.Timeout] = set()
        self._leaving = False
        self._empty: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._handlers)

    def enter(self) -> asyncio.Task[object]:
        """Take the handler that runs in, until `leave`. Raises `Refusal` where there are too
        many."""
        handler = asyncio.current_task()
        assert handler is not None
        if len(self._handlers) >= self._most:
            raise Refusal("too_many", f"{len(self._handlers)} requests are open already")
        self._handlers.add(handler)
        return handler

    def leave(self, handler: asyncio.Task[object]) -> None:
        self._handlers.discard(handler)
        if self._empty is not None and not self._handlers and not self._empty.done():
            self._empty.set_result(None)

    @asynccontextmanager
    async def within(self, seconds: float, late: Refusal) -> AsyncGenerator[None]:
        """Raises `late` when the time is over, and that the session has ended if it does."""
        try:
            async with asyncio.timeout(seconds) as timeout:
                self._waiting.add(timeout)
                try:
                    yield
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError:
            raise (session_ended() if self._leaving else late) from None

    async def clear(self, seconds: float) -> None:
        """Wake who waits, wait for all to go, and cut off who does not."""
        self._leaving = True
        now = asyncio.get_running_loop().time()
        for timeout in self._waiting:
            timeout.reschedule(now)
        if not self._handlers:
            return
        self._empty = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._empty
        except TimeoutError:
            log.warning("%d clients do not take their answers; cut off", len(self._handlers))
            for task in tuple(self._handlers):
                task.cancel()


def session_ended() -> Refusal:
    return Refusal("ended", "this session has ended; no more requests are answered")
