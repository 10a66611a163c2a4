"""The HTTP handlers of a session: their number, the bytes of the bodies they read, and their end.

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


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    size: int
    turn: asyncio.Future[None]


class BodyBudget:
    """A budget in bytes. Callers that do not fit wait in order of arrival."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[_Waiter] = deque()

    @property
    def taken(self) -> int:
        return self._most - self._left

    @asynccontextmanager
    async def room(self, size: int) -> AsyncGenerator[None]:
        """Reserve the whole size before reading a body: half-read bodies would deadlock each
        other."""
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
                self._give(0)  # a later waiter may need less
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
"""Handlers per concurrent request: room for retries, token counts and unfinished bodies."""

MAX_FULL_BODIES = 2
"""The number of bodies of the maximum size that fit into the budget."""


class Handlers:
    """Counts the active handlers of a session, and ends them all with the session."""

    def __init__(self, concurrent: int, body_bytes: int) -> None:
        self.intake = BodyBudget(body_bytes * MAX_FULL_BODIES)
        """The budget for unfinished bodies."""
        self.heavy = asyncio.Lock()
        """Held while a body of this session is in the parser threads."""
        self._most = concurrent * HANDLERS_PER_REQUEST
        self._handlers: set[asyncio.Task[object]] = set()
        self._waiting: set[asyncio.Timeout] = set()
        self._leaving = False
        self._empty: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._handlers)

    def enter(self) -> asyncio.Task[object]:
        """Register the current handler until `leave`. Raises `Refusal` if there are too many."""
        handler = asyncio.current_task()
        assert handler is not None
        if len(self._handlers) >= self._most:
            raise Refusal("too_many", f"{len(self._handlers)} requests are already open")
        self._handlers.add(handler)
        return handler

    def leave(self, handler: asyncio.Task[object]) -> None:
        self._handlers.discard(handler)
        if self._empty is not None and not self._handlers and not self._empty.done():
            self._empty.set_result(None)

    @asynccontextmanager
    async def within(self, seconds: float, late: Refusal) -> AsyncGenerator[None]:
        """Raise `late` on timeout, or `session_ended` if the session ends meanwhile."""
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
        """Wake all waiting handlers, wait for them to leave, and cancel the rest after the
        timeout."""
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
            log.warning(
                "%d clients did not read their answers in time; their handlers are cancelled",
                len(self._handlers),
            )
            for task in tuple(self._handlers):
                task.cancel()


def session_ended() -> Refusal:
    return Refusal("ended", "this session has ended")
