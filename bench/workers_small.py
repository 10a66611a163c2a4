"""Measurements of `bench_workers.py` besides the churn: small turns, sleeping trials, deaths."""

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import WorkerError
from plimsoll.core.ids import Owner
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.rules.batching import Batch
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Cause, Graded, Void
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.engines.process import ProcessEngine
from plimsoll.workers.messages import Result
from workers_environment import BenchOptions
from workers_sides import WorkerProcess, order, spec

__all__ = ["Deaths", "Sleepers", "SmallTurns", "deaths", "sleepers", "small_turns"]

TURNS, SIZE = 20, 1024


@dataclass(frozen=True, slots=True)
class SmallTurns:
    """CPU of a turn that adds 1 KB, in milliseconds."""

    turns: int
    worker: float
    controller: float
    """CPU of the supervisor and the ledger, in this process."""
    agent: float
    """The agent's part of the worker's CPU."""

    @property
    def whole(self) -> float:
        return self.worker + self.controller


async def small_turns(options: BenchOptions, steps: int) -> SmallTurns:
    """Drive a run like a controller: admit, run, finish, consume without training, commit."""
    settings = Settings(batch_groups=4, max_running=32, group_size=8, depth=0, max_staleness=0)
    tasks = DataOrder([f"task-{number}" for number in range(1000)])
    owner = Owner("bench", os.getpid(), "")
    worker_spec = spec(options, settings.max_running)
    async with (
        Ledger(Path(options.folder), settings, owner, time.time) as ledger,
        Supervisor(ProcessEngine(), worker_spec, number=1) as supervisor,
    ):
        process = await _ready(supervisor)

        async def one(ticket: str, command: str) -> None:
            await ledger.start(ticket, "worker-1")
            result = await supervisor.run(order(ticket, f"{command} {TURNS} {SIZE}"))
            assert isinstance(result.verdict, Graded), result.verdict
            await ledger.finish(ticket, result.verdict, result.seconds, result.segments)

        async def step(command: str) -> int:
            await ledger.admit(tasks)
            waiting = ledger.accounts.waiting()
            await asyncio.gather(*(one(ticket, command) for ticket in waiting))
            batch = ledger.choose()
            assert isinstance(batch, Batch), batch
            await ledger.consume(batch)
            supervisor.set_version(await ledger.commit())
            return len(waiting) * TURNS

        await step("play")
        cpu, own = process.cpu, time.process_time()
        turns = sum([await step("play") for _ in range(steps)])
        cpu, own, alone = process.cpu - cpu, time.process_time() - own, process.cpu
        alone_turns = await step("alone")
        agent = (process.cpu - alone) / alone_turns
    return SmallTurns(turns, 1000 * cpu / turns, 1000 * own / turns, 1000 * agent)


@dataclass(frozen=True, slots=True)
class Sleepers:
    """Event loop lag in milliseconds, with this many trials asleep in their sessions."""

    trials: int
    asleep: dict[str, float]
    starting: dict[str, float]
    """Lag while all of them start at once and make their first turn."""
    growth: float
    """Megabytes that the trials add to the worker."""


async def sleepers(options: BenchOptions, trials: int, seconds: float) -> Sleepers:
    worker_spec = spec(options, trials + 1)
    async with Supervisor(ProcessEngine(), worker_spec, number=1) as supervisor:
        process = await _ready(supervisor)
        before = process.rss
        sleeping = [
            asyncio.create_task(supervisor.run(order(f"sleep-{number}", f"sleep {seconds:g}")))
            for number in range(trials)
        ]
        starting = await supervisor.run(order("probe-1", f"probe {seconds / 3:g}"))
        asleep = await supervisor.run(order("probe-2", f"probe {seconds / 3:g}"))
        rss = process.rss
        results = await asyncio.gather(*sleeping)
    if bad := [result.verdict for result in results if isinstance(result.verdict, Void)]:
        raise SystemExit(f"a sleeping trial is void: {bad[0]}")
    return Sleepers(trials, _in_ms(asleep), _in_ms(starting), rss - before)


def _in_ms(probe: Result) -> dict[str, float]:
    return {name: 1000 * late for name, late in json.loads(probe.trajectory).items()}


@dataclass(frozen=True, slots=True)
class Deaths:
    """Seconds until the controller has handled a killed worker, and one that cannot start."""

    orders: int
    noticed: float
    """Until all its tickets were void with the cause `lost`."""
    again: float
    """Until their retries had run on another worker."""
    reported: float
    """Until a worker that cannot start was reported, with its last output."""


async def deaths(options: BenchOptions, orders: int) -> Deaths:
    worker_spec = spec(options, orders)
    async with Supervisor(ProcessEngine(), worker_spec, number=1) as supervisor:
        process = await _ready(supervisor)
        waiting = [
            asyncio.create_task(supervisor.run(order(f"lost-{number}", "sleep 600")))
            for number in range(orders)
        ]
        await asyncio.sleep(1)
        began = time.perf_counter()
        os.kill(process.pid, signal.SIGKILL)
        lost = await asyncio.gather(*waiting)
        noticed = time.perf_counter() - began
        causes = {each.verdict.cause for each in lost if isinstance(each.verdict, Void)}
        assert causes == {Cause.LOST}, lost[0]
        again = [supervisor.run(order(f"again-{number}", "sleep 0")) for number in range(orders)]
        answered = await asyncio.gather(*again)
        assert all(isinstance(each.verdict, Graded) for each in answered), answered[0]
        took = time.perf_counter() - began
    return Deaths(orders, noticed, took, await _reported(options))


async def _reported(options: BenchOptions) -> float:
    broken = spec(options, 1, "broken_environment")
    began = time.perf_counter()
    async with Supervisor(ProcessEngine(), broken, number=1) as supervisor:
        try:
            await supervisor.wait_ready()
        except WorkerError as error:
            assert "a-missing-module" in str(error), error
            return time.perf_counter() - began
    raise SystemExit("a worker that cannot start was ready")


async def _ready(supervisor: Supervisor) -> WorkerProcess:
    await supervisor.wait_ready()
    return WorkerProcess(int(supervisor.status()[0].where.removeprefix("pid ")))
