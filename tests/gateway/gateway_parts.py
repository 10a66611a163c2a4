"""A gateway with a session and a client, and an upstream that a test controls step by step."""

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.access import Access
from plimsoll.gateway.completions import (
    Answer,
    Chunk,
    Refusal,
    Usage,
)
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.upstreams.protocol import Upstream
from plimsoll.gateway.upstreams.replicas import ReplicaState
from plimsoll.testing.waiting import until
from plimsoll.trajectories.messages import Message, Text
from plimsoll.trajectories.records import Exchange
from plimsoll.trajectories.reported_tokens import TokenIds
from plimsoll.trajectories.trajectory import Trajectory
from plimsoll.trajectories.trajectory_file import read_trajectory

__all__ = [
    "ENDPOINTS",
    "HELLO",
    "ServedSession",
    "Stepped",
    "alive",
    "asked",
    "done",
    "fields",
    "say",
    "serving",
]

HELLO = [{"role": "user", "content": "hello"}]

ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": HELLO},
    "/v1/responses": {"model": "m", "input": "hello"},
    "/v1/messages": {"model": "m", "max_tokens": 100, "messages": HELLO},
}
"""The paths of exchanges, each with a request."""


def asked(path: str, number: int = 0, **more: Any) -> dict[str, Any]:
    """A request to `path`; each number gives a different request."""
    return {**ENDPOINTS[path], "temperature": number / 1000, **more}


def fields(body: bytes) -> list[dict[str, Any]]:
    """The data of a stream's events."""
    lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


class Step:
    """One call of the upstream, controlled by the test."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str | Refusal | None] = asyncio.Queue()
        self.cancelled = False
        self.over = False


class Stepped:
    """An upstream for fault injection: each call waits for the test."""

    def __init__(self) -> None:
        self.version: Version = FIRST_VERSION
        self.streams = True
        self.model = "stepped"
        self.calls: list[Step] = []
        self.counting = asyncio.Event()
        self.usage: Usage | None = Usage(prompt=7, answer=3)

    @property
    def replicas(self) -> list[ReplicaState]:
        return [ReplicaState(url="stepped")]

    async def call(self, number: int = -1) -> Step:
        """The call with this number, once it has arrived."""
        count = number + 1 if number >= 0 else 1
        await until(lambda: len(self.calls) >= count)
        return self.calls[number]

    async def ready(self) -> Version:
        return self.version

    async def answer(self, *_: object) -> Answer:
        texts = [piece async for piece in self._pieces()]
        ids = TokenIds([1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [-0.5, -0.25, -1.0])
        message = Message(role="assistant", parts=(Text("".join(texts)),))
        return Answer(id="a", message=message, finish="stop", usage=self.usage, tokens=ids)

    @asynccontextmanager
    async def stream(self, *_: object) -> AsyncGenerator[AsyncIterator[list[Chunk]]]:
        async with contextlib.aclosing(self._chunks()) as chunks:
            yield chunks

    async def count(self, *_: object) -> int:
        await self.counting.wait()
        return 42

    async def close(self) -> None:
        pass

    async def _chunks(self) -> AsyncGenerator[list[Chunk]]:
        prompt: list[int] | None = [1, 2, 3, 4, 5, 6, 7]
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for text in pieces:
                delta = {"index": 0, "delta": {"content": text}}
                data = json.dumps({"id": "c", "choices": [delta]}).encode()
                yield [Chunk(data, text=text, prompt_ids=prompt, ids=[8], logprobs=[-0.5])]
                prompt = None
        last = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        yield [Chunk(json.dumps(last).encode(), finish="stop", usage=self.usage)]

    async def _pieces(self) -> AsyncGenerator[str]:
        step = Step()
        self.calls.append(step)
        try:
            while (piece := await step.queue.get()) is not None:
                if isinstance(piece, Refusal):
                    raise piece
                yield piece
        except (asyncio.CancelledError, GeneratorExit):
            step.cancelled = True
            raise
        finally:
            step.over = True


def say(step: Step, *pieces: str | Refusal) -> None:
    for each in pieces:
        step.queue.put_nowait(each)


def done(step: Step, *pieces: str) -> None:
    say(step, *pieces)
    step.queue.put_nowait(None)


@dataclass(slots=True)
class ServedSession:
    """A gateway, one of its sessions, and a client with the session's key."""

    gateway: Gateway
    session: Session
    access: Access
    client: aiohttp.ClientSession
    folder: Path
    stack: AsyncExitStack
    """Closed at the end."""

    def post(self, path: str = "/v1/chat/completions", number: int = 0, **more: Any) -> Any:
        return self.client.post(self.access.root + path, json=asked(path, number, **more))

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.client.get(self.access.root + path, headers=headers) as reply:
            return reply.status, await reply.json()

    async def ask(
        self, path: str = "/v1/chat/completions", number: int = 0, **more: Any
    ) -> tuple[int, bytes]:
        async with self.post(path, number, **more) as reply:
            return reply.status, await reply.read()

    def asking(
        self, path: str = "/v1/chat/completions", number: int = 0, **more: Any
    ) -> asyncio.Task[tuple[int, bytes]]:
        """A request in flight."""
        return asyncio.create_task(self.ask(path, number, **more))

    def start_stream(
        self, path: str = "/v1/chat/completions", number: int = 0, **more: Any
    ) -> asyncio.Task[aiohttp.ClientResponse]:
        """A stream, once its first bytes have arrived."""

        async def post() -> aiohttp.ClientResponse:
            return await self.post(path, number, stream=True, **more)

        return asyncio.create_task(post())

    async def read(self) -> Trajectory:
        """End the session, and read its trajectory."""
        return read_trajectory(await self.session.end())


@asynccontextmanager
async def serving(
    upstream: Upstream, folder: Path, limits: Limits | None = None
) -> AsyncGenerator[ServedSession]:
    async with Gateway(upstream) as gateway:
        session = await gateway.open(
            folder / "session", blobs=folder / "blobs", limits=limits, about={"task": "t"}
        )
        access = session.access(gateway.port)
        # One connection per request, so that the end of one does not affect others.
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        headers = {"Authorization": f"Bearer {access.key}"}
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as client,
            AsyncExitStack() as stack,
        ):
            yield ServedSession(gateway, session, access, client, folder, stack)


def runs_in_file(exchanges: Iterable[Exchange]) -> list[tuple[Version, int]]:
    """Runs of (version, number of generated tokens), read from the exchanges of a file."""
    runs: list[tuple[Version, int]] = []
    for exchange in exchanges:
        versions = exchange.tokens.versions if exchange.tokens else ()
        for version, tokens in versions or ((exchange.version, exchange.answer_tokens or 0),):
            if runs and runs[-1][0] == version:
                tokens += runs.pop()[1]
            runs.append((version, tokens))
    return runs


def alive(kind: type) -> int:
    """The number of objects of a type, counted without the garbage collector."""
    return sum(1 for each in gc.get_objects() if isinstance(each, kind))
