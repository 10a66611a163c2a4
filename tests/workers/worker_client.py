"""One real worker process, with the test in place of the supervisor."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from plimsoll.workers.channel import ControllerSocket
from plimsoll.workers.engines.process import ProcessEngine, WorkerProcess
from plimsoll.workers.engines.protocol import Credentials
from plimsoll.workers.messages import (
    Beat,
    Begin,
    EnvironmentOptions,
    Finished,
    FromWorker,
    Hello,
    Order,
    Ready,
    Result,
    Run,
    ToWorker,
    WorkerSpec,
)
from stand_ins import stand_in

__all__ = ["WorkerClient", "marking_spec", "ready_client", "started_client"]

MARKING = "marking_environment:marking"
Message = TypeVar("Message", bound=FromWorker)


def marking_spec(folder: Path, maker: str = MARKING, **changes: object) -> WorkerSpec:
    return WorkerSpec(
        run="test",
        options=EnvironmentOptions(config=msgspec.Raw(b"{}"), directory=str(folder)),
        concurrency=4,
        environment=stand_in(maker, Path(__file__).parent),
        **{"beat_seconds": 0.1, **changes},
    )


class WorkerClient:
    """Sends messages to a worker and receives its messages."""

    def __init__(
        self, channel: ControllerSocket, credentials: Credentials, placed: WorkerProcess
    ) -> None:
        self.channel = channel
        self.credentials = credentials
        self.placed = placed
        self.pid = int(placed.where.removeprefix("pid "))
        self.beats: list[Beat] = []
        self.others: list[FromWorker] = []

    def send(self, message: ToWorker) -> None:
        self.channel.send(self.credentials.invitation.worker, message)

    def order(self, ticket: str, task: str, folder: Path | str = "") -> None:
        order = Order(ticket=ticket, task=task, name="t", attempt=1, folder=str(folder))
        self.send(Run(order))

    async def receive(
        self, kind: type[Message], matches: Callable[[Message], bool] = lambda _: True
    ) -> Message:
        """Return the next message of a type. Other messages are stored."""
        async with asyncio.timeout(120):
            while True:
                message = (await self.channel.receive()).message
                if isinstance(message, Beat):
                    self.beats.append(message)
                else:
                    self.others.append(message)
                if isinstance(message, kind) and matches(message):
                    return message

    async def running(self) -> None:
        """Wait until a ticket runs."""
        await self.receive(Beat, lambda beat: beat.counts.get("alive", 0) > 0)

    async def result(self, ticket: str) -> Result:
        """The result of a ticket, also if it arrived during another wait."""
        for message in self.others:
            if isinstance(message, Finished) and message.result.ticket == ticket:
                return message.result
        return (await self.receive(Finished, lambda m: m.result.ticket == ticket)).result

    async def ended(self, within: float) -> str:
        """Wait until the worker exits by itself. Returns its exit status."""
        async with asyncio.timeout(within):
            return (await self.placed.ended()).how

    async def listen(self, seconds: float) -> None:
        """Receive messages for a number of seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self.receive(Beat)
            except TimeoutError:
                return


@asynccontextmanager
async def started_client(maker: str = MARKING) -> AsyncIterator[WorkerClient]:
    """A worker that has sent its hello and got no reply."""
    here = stand_in(maker, Path(__file__).parent)
    async with ProcessEngine() as engine, ControllerSocket(engine.host) as channel:
        request = channel.prepare("worker-1", here)
        credentials = Credentials.make(request.invitation)
        request.admit(credentials.public_key)
        client = WorkerClient(channel, credentials, engine.launch(credentials, here))
        await client.receive(Hello)
        yield client


@asynccontextmanager
async def ready_client(spec: WorkerSpec) -> AsyncIterator[WorkerClient]:
    """A worker that is ready."""
    async with started_client(spec.environment["PLIMSOLL_STAND_IN"]) as client:
        client.send(Begin(spec))
        await client.receive(Ready)
        yield client
