"""The environment of the workers of `bench_workers.py`: a gateway, and no sandboxes.

An order's task is a command:

- `play TURNS BYTES` is a rollout whose agent runs in the worker.
- `apart TURNS BYTES` is a rollout whose agent is a separate process, as agents in sandboxes are.
- `alone TURNS BYTES` is a rollout whose agent calls the policy directly.
- `sleep SECONDS` is a rollout that sleeps between two turns.
- `probe SECONDS` measures the lag of the event loop.
"""

import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

import workers_agent
from plimsoll.core.endings import Ending
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.access import Access
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.upstreams.factory import make_upstream
from plimsoll.ledger.events import Segment
from plimsoll.trials.verdicts import Graded
from plimsoll.workers.messages import (
    EnvironmentOptions,
    Kind,
    Order,
    Result,
    SandboxReport,
)
from workers_agent import play

__all__ = ["BenchOptions", "bench_environment", "broken_environment"]

SMALL = 1024
TICK = 0.01


class BenchOptions(msgspec.Struct, frozen=True):
    """The policy's address, the folder of trajectories, and the garbage collection setting."""

    policy: str
    folder: str
    collects: bool = True


class BenchEnvironment:
    """Runs orders, each with a gateway session if it needs one."""

    def __init__(self, gateway: Gateway, options: BenchOptions) -> None:
        self._gateway = gateway
        self._policy = options.policy
        self._folder = Path(options.folder)
        self._version = FIRST_VERSION
        self._running = 0

    async def run(self, order: Order) -> Result:
        began = time.monotonic()
        command, *figures = order.task.split()
        trajectory = ""
        self._running += 1
        try:
            match command:
                case "probe":
                    trajectory = json.dumps(await _loop_lag(float(figures[0])))
                case "alone":
                    await play(f"{self._policy}/v1", "none", *map(int, figures))
                case _:
                    trajectory = await self._converse(order, command, figures)
        finally:
            self._running -= 1
        return Result(
            ticket=order.ticket,
            verdict=Graded(1.0, Ending.SUBMITTED),
            seconds=time.monotonic() - began,
            trajectory=trajectory,
            segments=(Segment(self._version, 1),),
        )

    async def _converse(self, order: Order, command: str, figures: list[str]) -> str:
        session = await self._gateway.open(
            self._folder / order.ticket.replace("/", "_"), blobs=self._folder / "blobs"
        )
        try:
            access = session.access(self._gateway.port)
            match command:
                case "play":
                    await play(access.openai, access.key, *map(int, figures))
                case "apart":
                    await _play_in_process(access, figures)
                case _:
                    await play(access.openai, access.key, 1, SMALL)
                    await asyncio.sleep(float(figures[0]))
                    await play(access.openai, access.key, 1, SMALL)
        finally:
            path = await session.end("submitted")
        return str(path)

    def set_version(self, version: Version) -> None:
        self._version = version

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        pass

    def expect(self, kinds: Sequence[Kind]) -> None:
        pass

    def take_report(self) -> SandboxReport | None:
        return None

    def counts(self) -> dict[str, int]:
        return {"sessions": len(self._gateway.sessions), "orders": self._running}


async def _play_in_process(access: Access, figures: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, workers_agent.__file__, access.openai, *figures), stdin=subprocess.PIPE
    )
    await process.communicate(f"{access.key}\n".encode())
    if process.returncode:
        raise ConnectionError(f"the agent ended with {process.returncode}")


async def _loop_lag(seconds: float) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    late: list[float] = []
    end = loop.time() + seconds
    while (due := loop.time() + TICK) < end:
        await asyncio.sleep(TICK)
        late.append(max(0.0, loop.time() - due))
    late.sort()
    return {"p99": late[int(len(late) * 0.99)], "worst": late[-1]}


@contextlib.asynccontextmanager
async def bench_environment(
    environment_options: EnvironmentOptions,
) -> AsyncIterator[BenchEnvironment]:
    options = msgspec.json.decode(environment_options.config, type=BenchOptions)
    if not options.collects:
        gc.disable()
    upstream = await make_upstream([options.policy], model="policy")
    async with Gateway(upstream) as gateway:
        yield BenchEnvironment(gateway, options)
    await upstream.close()


@contextlib.asynccontextmanager
async def broken_environment(
    environment_options: EnvironmentOptions,  # noqa: ARG001
) -> AsyncIterator[BenchEnvironment]:
    raise ImportError("no module named a-missing-module")
    yield
