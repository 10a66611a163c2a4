"""The HTTP handlers of a session: limits their number and the bytes of the bodies that they read,
and ends them with the session.

A client can open many connections and stop in the middle of a body on each of them. So the bytes of
all unfinished bodies of a session have a limit, besides the limit on each.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from plimsoll.gateway.completions import Refusal

__all__ = ["BodyBudget", "Handlers", "session_ended"]

log = logging.getLogger(__name__)

HANDLERS_PER_REQUEST = 4
"""Handlers per concurrent request: room for retries, token counts and unfinished bodies."""

MAX_FULL_BODIES = 2
"""The number of bodies of the maximum size that fit into the budget."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    size: int
    granted: asyncio.Future[None]


class BodyBudget:
    """A budget in bytes. Callers that do not fit wait in order of arrival."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = capacity
        self._waiters: deque[_Waiter] = deque()

    @property
    def used(self) -> int:
        return self._capacity - self._free

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncGenerator[None]:
        """Reserve the whole size before reading a body: half-read bodies would deadlock each
        other."""
        size = min(size, self._capacity)
        await self._acquire(size)
        try:
            yield
        finally:
            self._release(size)

    async def _acquire(self, size: int) -> None:
        if not self._waiters and size <= self._free:
            self._free -= size
            return
        waiter = _Waiter(size, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._release(0)  # a later waiter may need less
            else:
                self._release(size)
            raise

    def _release(self, size: int) -> None:
        self._free += size
        while self._waiters and self._waiters[0].size <= self._free:
            first = self._waiters.popleft()
            self._free -= first.size
            if not first.granted.done():
                first.granted.set_result(None)


class Handlers:
    """Counts the active handlers of a session, and ends them all with the session."""

    def __init__(self, concurrent: int, body_bytes: int) -> None:
        self.body_budget = BodyBudget(body_bytes * MAX_FULL_BODIES)
        """The budget for unfinished bodies."""
        self.parsing = asyncio.Lock()
        """Held while a body of this session is in the parser threads."""
        self._limit = concurrent * HANDLERS_PER_REQUEST
        self._handlers: set[asyncio.Task[object]] = set()
        self._timeouts: set[asyncio.Timeout] = set()
        self._closing = False
        self._empty: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._handlers)

    def enter(self) -> asyncio.Task[object]:
        """Register the current handler until `leave`. Raises `Refusal` if there are too many."""
        handler = asyncio.current_task()
        assert handler is not None
        if len(self._handlers) >= self._limit:
            raise Refusal("too_many", f"{len(self._handlers)} requests are already open")
        self._handlers.add(handler)
        return handler

    def leave(self, handler: asyncio.Task[object]) -> None:
        self._handlers.discard(handler)
        if self._empty is not None and not self._handlers and not self._empty.done():
            self._empty.set_result(None)

    @asynccontextmanager
    async def time_limit(self, seconds: float, late: Refusal) -> AsyncGenerator[None]:
        """Raise `late` on timeout, or `session_ended` if the session ends meanwhile."""
        try:
            async with asyncio.timeout(seconds) as timeout:
                self._timeouts.add(timeout)
                try:
                    yield
                finally:
                    self._timeouts.discard(timeout)
        except TimeoutError:
            raise (session_ended() if self._closing else late) from None

    async def close(self, seconds: float) -> None:
        """Wake all waiting handlers, wait for them to leave, and cancel the rest after the
        timeout."""
        self._closing = True
        now = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            if not timeout.expired():  # an expired one is about to wake its handler
                timeout.reschedule(now)
        if not self._handlers:
            return
        self._empty = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._empty
        except TimeoutError:
            log.warning(
                "%d clients did not read their answers in time; their handlers are cancelled",
                len(self._handlers),
            )
            for task in tuple(self._handlers):
                task.cancel()


def session_ended() -> Refusal:
    return Refusal("ended", "this session has ended")
