"""A place whose trials toss coins, and start no sandbox."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator

import msgspec

from plimsoll.core.endings import Ending
from plimsoll.core.versions import FIRST, Version
from plimsoll.ledger.events import Segment
from plimsoll.trials.verdicts import Graded
from plimsoll.workers.place import Order, Result

__all__ = ["CoinPlace", "coins"]


class CoinPlace:
    def __init__(self) -> None:
        self._version = FIRST

    async def run(self, order: Order) -> Result:
        began = self._version
        await asyncio.sleep(0.01)
        reward = float(hashlib.sha256(order.ticket.encode()).digest()[0] % 2)
        return Result(
            ticket=order.ticket,
            verdict=Graded(reward, Ending.SUBMITTED, {"reward": reward}),
            seconds=0.01,
            segments=(Segment(began, 5),),
        )

    async def group_over(self, group: str) -> None:
        pass

    def set_version(self, version: Version) -> None:
        self._version = version

    def counts(self) -> dict[str, int]:
        return {}


@contextlib.asynccontextmanager
async def coins(options: msgspec.Raw) -> AsyncIterator[CoinPlace]:
    yield CoinPlace()
