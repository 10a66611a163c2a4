"""The gate: holds requests while the policy's weights change, and tracks the policy's version.

`Pauses` announces the pauses to everything that measures time by the policy.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from plimsoll.core.stopwatch import Stopwatch
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.completions import Answer, Chunk, Request
from plimsoll.gateway.upstreams.protocol import CallContext
from plimsoll.gateway.upstreams.replicas import ReplicaState

__all__ = ["AnswerSource", "Gate", "PauseListener", "Pauses"]


class PauseListener(Protocol):
    """Is notified when the policy pauses and resumes."""

    def pause(self, *, drains: bool) -> None: ...

    def resume(self) -> None: ...


class Pauses:
    """The pause state of the policy.

    With `drains`, the policy still answers the requests that it received before the pause; without,
    it answers none.
    """

    def __init__(self) -> None:
        self.clock = Stopwatch()
        """Stops while the policy is paused."""
        self.drains = False
        self._listeners: dict[PauseListener, None] = {}

    @property
    def is_paused(self) -> bool:
        return self.clock.is_stopped

    def begin(self, *, drains: bool) -> None:
        """Announce a pause. Does nothing during a pause."""
        if self.is_paused:
            return
        self.drains = drains
        self.clock.stop()
        for listener in tuple(self._listeners):
            listener.pause(drains=drains)

    def end(self) -> None:
        """Announce the end of a pause. Does nothing without one."""
        if not self.is_paused:
            return
        self.clock.start()
        for listener in tuple(self._listeners):
            listener.resume()

    def subscribe(self, listener: PauseListener) -> None:
        """Notify a listener until `unsubscribe`; at once if the policy is paused now."""
        self._listeners[listener] = None
        if self.is_paused:
            listener.pause(drains=self.drains)

    def unsubscribe(self, listener: PauseListener) -> None:
        self._listeners.pop(listener, None)


class AnswerSource(Protocol):
    """An upstream behind a gate."""

    @property
    def model(self) -> str: ...

    @property
    def streams(self) -> bool: ...

    @property
    def replicas(self) -> Sequence[ReplicaState]: ...

    async def answer(self, request: Request, call: CallContext) -> Answer: ...

    def stream(
        self, request: Request, call: CallContext
    ) -> AbstractAsyncContextManager[AsyncIterator[list[Chunk]]]: ...

    async def count(self, request: Request, call: CallContext) -> int: ...

    async def close(self) -> None: ...


class Gate:
    """An `Upstream` that can be paused. Requests wait during a pause; none is lost."""

    def __init__(self, source: AnswerSource, pauses: Pauses | None = None) -> None:
        self.pauses = pauses or Pauses()
        """The pauses of the gate, and those that its servers start themselves."""
        self._source = source
        self._version = FIRST_VERSION
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.in_flight = 0
        self.held = 0
        """The number of requests that wait at the gate."""

    @property
    def version(self) -> Version:
        return self._version

    @property
    def model(self) -> str:
        """The policy's name at its server."""
        return self._source.model

    @property
    def streams(self) -> bool:
        return self._source.streams

    @property
    def paused(self) -> bool:
        return not self._open.is_set()

    @property
    def replicas(self) -> Sequence[ReplicaState]:
        return self._source.replicas

    async def pause(self, *, drain: bool = False) -> None:
        """Hold new requests. With `drain`, return once the requests in flight are answered; if
        cancelled while waiting, reopen the gate."""
        self._open.clear()
        self.pauses.begin(drains=True)
        if drain:
            try:
                await self._idle.wait()
            except asyncio.CancelledError:
                self.resume()
                raise

    def resume(self, version: Version | None = None) -> None:
        """Let requests pass. Everything generated from now on has this version."""
        if version is not None:
            self._version = version
        self._open.set()
        self.pauses.end()

    async def ready(self) -> Version:
        # It may be paused again before a woken request runs.
        while not self._open.is_set():
            self.held += 1
            try:
                await self._open.wait()
            finally:
                self.held -= 1
        return self._version

    async def answer(self, request: Request, call: CallContext) -> Answer:
        await self._enter()
        try:
            return await self._source.answer(request, call)
        finally:
            self._leave()

    @asynccontextmanager
    async def stream(
        self, request: Request, call: CallContext
    ) -> AsyncGenerator[AsyncIterator[list[Chunk]]]:
        await self._enter()
        try:
            async with self._source.stream(request, call) as pieces:
                del request
                yield pieces
        finally:
            self._leave()

    async def count(self, request: Request, call: CallContext) -> int:
        return await self._source.count(request, call)

    async def close(self) -> None:
        await self._source.close()

    async def _enter(self) -> None:
        await self.ready()
        self.in_flight += 1
        self._idle.clear()

    def _leave(self) -> None:
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()
