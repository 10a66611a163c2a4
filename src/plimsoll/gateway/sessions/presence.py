"""The handlers that are in a session: who reads a body, who waits, who writes."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from plimsoll.gateway.forms import Refusal
from plimsoll.gateway.sessions.intake import Intake

__all__ = ["Presence", "ended"]

log = logging.getLogger(__name__)

PER_WAITING = 4
"""Handlers for each request that may wait at once: retries, counts and bodies on their way."""

BODIES = 2
"""Bodies of the largest size that may be on their way at once; of smaller ones, as many as fit."""


class Presence:
    """Counts handlers in and out, and sees them all out at the end."""

    def __init__(self, concurrent: int, body_bytes: int) -> None:
        self.intake = Intake(body_bytes * BODIES)
        """What may be on its way of bodies."""
        self.heavy = asyncio.Lock()
        """Held by the body that is decompressed or parsed off the loop: one at a time."""
        self._most = concurrent * PER_WAITING
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
            raise (ended() if self._leaving else late) from None

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


def ended() -> Refusal:
    return Refusal("ended", "this session has ended; no more requests are answered")
