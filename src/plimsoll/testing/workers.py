"""An engine whose workers start at once and run nothing, for tests of the code that drives them."""

import asyncio
from types import TracebackType
from typing import Self

from plimsoll.workers.engines.protocol import Exit, StartRequest

__all__ = ["IdleEngine", "IdleWorker"]


class IdleWorker:
    """A worker without a process. It ends when it is killed."""

    where = "nowhere"
    is_placed = True

    def __init__(self) -> None:
        self._killed = asyncio.Event()

    async def ended(self) -> Exit:
        await self._killed.wait()
        return Exit("it was killed", killed=True)

    async def kill(self) -> None:
        self._killed.set()


class IdleEngine:
    """Starts `IdleWorker`s. Implements `Engine`."""

    host = "127.0.0.1"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    async def start(self, request: StartRequest) -> IdleWorker:
        del request
        return IdleWorker()

    def describe_wait(self, workers: int) -> str:
        return f"{workers} workers"
