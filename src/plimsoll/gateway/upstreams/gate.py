"""Holds requests while the weights of the policy change, and knows their version."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from plimsoll.core.versions import FIRST, Version
from plimsoll.gateway.forms import Answer, Chunk, Request
from plimsoll.gateway.upstreams.pauses import Pauses
from plimsoll.gateway.upstreams.protocol import Call
from plimsoll.gateway.upstreams.replica import ReplicaState

__all__ = ["Gate", "Source"]


class Source(Protocol):
    """What answers behind a gate."""

    @property
    def model(self) -> str: ...

    @property
    def streams(self) -> bool: ...

    @property
    def replicas(self) -> Sequence[ReplicaState]: ...

    async def answer(self, request: Request, call: Call) -> Answer: ...

    def stream(
        self, request: Request, call: Call
    ) -> AbstractAsyncContextManager[AsyncIterator[list[Chunk]]]: ...

    async def count(self, request: Request, call: Call) -> int: ...

    async def close(self) -> None: ...


class Gate:
    """An `Upstream` that can be paused. Requests that come meanwhile wait; none is lost."""

    def __init__(
        self, source: Source, version: Version = FIRST, pauses: Pauses | None = None
    ) -> None:
        self.pauses = pauses or Pauses()
        """Those of the gate, and those that the servers behind it make by themselves."""
        self._source = source
        self._version = version
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.in_flight = 0
        self.held = 0
        """How many requests wait for the gate to open."""

    @property
    def version(self) -> Version:
        return self._version

    @property
    def model(self) -> str:
        """The name that the policy goes by at its server."""
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
        """Holds new requests. With `drain`, returns once those in flight are answered; cancelled
        while it waits for them, it opens the gate again."""
        self._open.clear()
        self.pauses.begin(drains=True)
        if drain:
            try:
                await self._idle.wait()
            except asyncio.CancelledError:
                self.resume()
                raise

    def resume(self, version: Version | None = None) -> None:
        """Lets requests pass. Whatever is generated from now on is of this version."""
        if version is not None:
            self._version = version
        self._open.set()
        self.pauses.end()

    async def ready(self) -> Version:
        # It may be paused again before a request that it woke gets its turn.
        while not self._open.is_set():
            self.held += 1
            try:
                await self._open.wait()
            finally:
                self.held -= 1
        return self._version

    async def answer(self, request: Request, call: Call) -> Answer:
        await self._enter()
        try:
            return await self._source.answer(request, call)
        finally:
            self._leave()

    @asynccontextmanager
    async def stream(
        self, request: Request, call: Call
    ) -> AsyncGenerator[AsyncIterator[list[Chunk]]]:
        await self._enter()
        try:
            async with self._source.stream(request, call) as pieces:
                del request
                yield pieces
        finally:
            self._leave()

    async def count(self, request: Request, call: Call) -> int:
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
