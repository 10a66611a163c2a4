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

__all__ = ["Hand", "begun", "in_hand", "marking_spec"]

MARKING = "marking_environment:marking"
Message = TypeVar("Message", bound=FromWorker)


def marking_spec(folder: Path, maker: str = MARKING, **more: object) -> WorkerSpec:
    return WorkerSpec(
        run="test",
        options=EnvironmentOptions(config=msgspec.Raw(b"{}"), directory=str(folder)),
        concurrency=4,
        environment=stand_in(maker, Path(__file__).parent),
        **{"beat_seconds": 0.1, **more},
    )


class Hand:
    """Sends messages to a worker and receives its messages."""

    def __init__(
        self, board: ControllerSocket, credentials: Credentials, placed: WorkerProcess
    ) -> None:
        self.board = board
        self.credentials = credentials
        self.placed = placed
        self.pid = int(placed.where.removeprefix("pid "))
        self.beats: list[Beat] = []
        self.others: list[FromWorker] = []

    def tell(self, message: ToWorker) -> None:
        self.board.send(self.credentials.invitation.worker, message)

    def order(self, ticket: str, task: str, folder: Path | str = "") -> None:
        order = Order(ticket=ticket, group="g", task=task, attempt=1, folder=str(folder))
        self.tell(Run(order))

    async def hear(
        self, kind: type[Message], fits: Callable[[Message], bool] = lambda _: True
    ) -> Message:
        """The next message of a type. Others are kept."""
        async with asyncio.timeout(120):
            while True:
                message = (await self.board.receive()).message
                if isinstance(message, Beat):
                    self.beats.append(message)
                else:
                    self.others.append(message)
                if isinstance(message, kind) and fits(message):
                    return message

    async def running(self) -> None:
        """Wait until a ticket runs."""
        await self.hear(Beat, lambda beat: beat.running > 0)

    async def result(self, ticket: str) -> Result:
        """The result of a ticket, also if it arrived during another wait."""
        for heard in self.others:
            if isinstance(heard, Finished) and heard.result.ticket == ticket:
                return heard.result
        return (await self.hear(Finished, lambda m: m.result.ticket == ticket)).result

    async def ended(self, within: float) -> str:
        """Wait for the worker to exit by itself; its exit status."""
        async with asyncio.timeout(within):
            return (await self.placed.ended()).how

    async def listen(self, seconds: float) -> None:
        """Receive messages for a number of seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self.hear(Beat)
            except TimeoutError:
                return


@asynccontextmanager
async def begun(maker: str = MARKING) -> AsyncIterator[Hand]:
    """A worker that has sent its hello and got no reply."""
    here = stand_in(maker, Path(__file__).parent)
    async with ProcessEngine() as engine, ControllerSocket(engine.host) as board:
        opening = board.open("worker-1", here)
        credentials = Credentials.make(opening.invitation)
        opening.admit(credentials.public_key)
        hand = Hand(board, credentials, engine.launch(credentials, here))
        await hand.hear(Hello)
        yield hand


@asynccontextmanager
async def in_hand(spec: WorkerSpec) -> AsyncIterator[Hand]:
    """A worker that is ready."""
    async with begun(spec.environment["PLIMSOLL_STAND_IN"]) as hand:
        hand.tell(Begin(spec))
        await hand.hear(Ready)
        yield hand
