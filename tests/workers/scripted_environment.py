"""An environment scripted by its orders: an order's task is a command with its argument."""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from plimsoll.core.endings import Ending
from plimsoll.core.errors import WorkerError
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.sandboxes.pool.stats import Readings
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Graded
from plimsoll.workers.messages import (
    EnvironmentOptions,
    Kind,
    Order,
    Result,
    SandboxReport,
    WorkerSpec,
)
from stand_ins import stand_in

__all__ = [
    "ScriptedEnvironment",
    "broken",
    "broken_and_slow",
    "dies_at_start",
    "never_ready",
    "order",
    "scripted",
    "shouts",
    "spec",
]


def order(ticket: str, task: str = "sleep 0") -> Order:
    return Order(ticket=ticket, task=task, name="t", attempt=1, folder="")


def spec(maker: str = "scripted", *, concurrency: int = 2, **more: object) -> WorkerSpec:
    """A worker spec that imports this file wherever the worker is started."""
    named = stand_in(f"scripted_environment:{maker}", Path(__file__).parent)
    environment = {**named, **more.pop("environment", {})}
    return WorkerSpec(
        run="test",
        options=EnvironmentOptions(config=msgspec.Raw(b"{}"), directory=""),
        concurrency=concurrency,
        environment=environment,
        **{"beat_seconds": 0.2, **more},
    )


class ScriptedEnvironment:
    """Sleeps, blocks its loop, dies, holds memory or returns requested values."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._version = FIRST_VERSION
        self._paused = (False, False)
        self._upcoming = Counter[str]()
        self._report: SandboxReport | None = None

    async def run(self, order: Order) -> Result:
        started = time.monotonic()
        word, _, about = order.task.partition(" ")
        text = await self._do(word, about)
        return Result(
            ticket=order.ticket,
            verdict=Graded(1.0, Ending.SUBMITTED),
            seconds=time.monotonic() - started,
            trajectory=text,
        )

    async def _do(self, word: str, about: str) -> str:
        match word:
            case "sleep":
                await asyncio.sleep(float(about))
            case "until":
                await until(Path(about).exists, 60)
            case "block":
                time.sleep(float(about))  # noqa: ASYNC251 - a blocked loop is the point
            case "die":
                print(about, file=sys.stderr, flush=True)
                os._exit(7)
            case "start":
                await asyncio.create_subprocess_exec("sleep", about)
            case "hold":
                self._held.append(os.urandom(1 << 20) * int(about))
            case "variable":
                return os.environ.get(about, "")
            case "paused":
                return str(self._paused)
            case "version":
                return str(self._version)
            case "coming":
                return msgspec.json.encode(self._upcoming).decode()
            case "warn":
                self._report = SandboxReport(warnings=(about,), sandboxes=Readings(warm={100: 1}))
            case "pid":
                return str(os.getpid())
            case _:
                raise AssertionError(word)
        return ""

    def set_version(self, version: Version) -> None:
        self._version = version

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        self._paused = paused, drains

    def expect(self, kinds: Sequence[Kind]) -> None:
        self._upcoming = Counter(kind.task for kind in kinds)

    def take_report(self) -> SandboxReport | None:
        report, self._report = self._report, None
        return report

    def counts(self) -> dict[str, int]:
        return {"held": len(self._held)}


@contextlib.asynccontextmanager
async def scripted(options: EnvironmentOptions) -> AsyncIterator[ScriptedEnvironment]:
    yield ScriptedEnvironment()


@contextlib.asynccontextmanager
async def broken(options: EnvironmentOptions) -> AsyncIterator[ScriptedEnvironment]:
    raise WorkerError("this environment cannot be made")
    yield ScriptedEnvironment()


@contextlib.asynccontextmanager
async def broken_and_slow(options: EnvironmentOptions) -> AsyncIterator[ScriptedEnvironment]:
    threading.Thread(target=time.sleep, args=(4,)).start()  # its process waits for this thread
    raise WorkerError("this environment cannot be made")
    yield ScriptedEnvironment()


@contextlib.asynccontextmanager
async def never_ready(options: EnvironmentOptions) -> AsyncIterator[ScriptedEnvironment]:
    await asyncio.Event().wait()
    yield ScriptedEnvironment()


def dies_at_start(options: EnvironmentOptions) -> None:
    print("the ship went down", file=sys.stderr, flush=True)
    os._exit(9)


def shouts(options: EnvironmentOptions) -> None:
    for number in range(100_000):
        print("line", number, file=sys.stderr)
    os._exit(1)
