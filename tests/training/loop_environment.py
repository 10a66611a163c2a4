"""Trial environments whose trials get random rewards and start no sandbox."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from plimsoll.core.endings import Ending
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.completions import NoHistory
from plimsoll.ledger.events import Segment
from plimsoll.trajectories.messages import Message, Text
from plimsoll.trajectories.recorder import Recorder
from plimsoll.trajectories.reported_tokens import AnsweredRequest
from plimsoll.trials.verdicts import Cause, Graded, Void
from plimsoll.workers.messages import (
    EnvironmentOptions,
    Kind,
    Order,
    Result,
    SandboxReport,
)

__all__ = [
    "CoinEnvironment",
    "coins",
    "loses_all_groups",
    "loses_first_group",
    "voids_first_trial",
    "without_ids",
]


class CoinEnvironment:
    """Trials with random rewards. Groups with a prefix in `missing` lose their trajectories."""

    def __init__(self, missing: tuple[str, ...] = ()) -> None:
        self._version = FIRST_VERSION
        self._missing = missing

    async def run(self, order: Order) -> Result:
        began = self._version
        await asyncio.sleep(0.01)
        reward = float(hashlib.sha256(order.ticket.encode()).digest()[0] % 2)
        return Result(
            ticket=order.ticket,
            verdict=Graded(reward, Ending.SUBMITTED, {"reward": reward}),
            seconds=0.01,
            segments=(Segment(began, 5),),
            trajectory="/nowhere/at/all" if order.ticket.startswith(self._missing) else "",
        )

    def set_version(self, version: Version) -> None:
        self._version = version

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        pass

    def expect(self, kinds: Sequence[Kind]) -> None:
        pass

    def take_report(self) -> SandboxReport | None:
        return None

    def counts(self) -> dict[str, int]:
        return {}


@contextlib.asynccontextmanager
async def coins(options: EnvironmentOptions) -> AsyncIterator[CoinEnvironment]:
    yield CoinEnvironment()


@contextlib.asynccontextmanager
async def loses_first_group(options: EnvironmentOptions) -> AsyncIterator[CoinEnvironment]:
    yield CoinEnvironment(("1-0",))


@contextlib.asynccontextmanager
async def loses_all_groups(options: EnvironmentOptions) -> AsyncIterator[CoinEnvironment]:
    yield CoinEnvironment(("",))


class FirstTrialVoid(CoinEnvironment):
    """The first trial of a run is void, and its retry is graded."""

    async def run(self, order: Order) -> Result:
        result = await super().run(order)
        if order.ticket != "0-0/0.0":
            return result
        return msgspec.structs.replace(result, verdict=Void(Cause.SANDBOX, "no space"))


@contextlib.asynccontextmanager
async def voids_first_trial(options: EnvironmentOptions) -> AsyncIterator[CoinEnvironment]:
    yield FirstTrialVoid()


class WithoutIds(CoinEnvironment):
    """Trials whose policy answers without token ids."""

    async def run(self, order: Order) -> Result:
        folder = Path(order.folder)
        recorder = Recorder.open(folder, folder / "blobs", "s1", {})
        answered = AnsweredRequest(
            answer=Message("assistant", (Text("Done."),)),
            finish="stop",
            dialect="chat",
            at=1.0,
            seconds=0.5,
            version=self._version,
            prompt_tokens=3,
            answer_tokens=2,
            tokens=None,
        )
        recorder.commit(recorder.locate(NoHistory(), None), answered)
        path = await recorder.close("submitted")
        return msgspec.structs.replace(await super().run(order), trajectory=str(path))


@contextlib.asynccontextmanager
async def without_ids(options: EnvironmentOptions) -> AsyncIterator[CoinEnvironment]:
    yield WithoutIds()
