"""Workers are killed, stopped and hung at random; no order is lost, none is resolved twice.

PLIMSOLL_CHAOS_SECONDS and PLIMSOLL_CHAOS_SEED set the duration and the seed.
"""

import asyncio
import collections
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from scripted_environment import order, spec
from supervised import Mark, options, pid_of

from parts import NIGHTLY
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Graded, Void
from plimsoll.workers.controller.roster import WorkerState
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.engines.protocol import Engine
from plimsoll.workers.messages import Result

SECONDS = float(os.environ.get("PLIMSOLL_CHAOS_SECONDS", 150 if NIGHTLY else 5))
SEED = int(os.environ.get("PLIMSOLL_CHAOS_SEED", "7"))
WORKERS, TICKETS = 3, 4


class Chaos:
    """Keeps workers busy, and kills, stops and hangs them."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.random = random.Random(SEED)
        self.results: collections.Counter[str] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.done: collections.Counter[str] = collections.Counter()
        self._supervisor = supervisor
        self._over = False

    async def run(self) -> None:
        callers = [asyncio.create_task(self._work(n)) for n in range(WORKERS * TICKETS + 3)]
        loop = asyncio.get_running_loop()
        until = loop.time() + SECONDS
        while loop.time() < until or not self._seen_enough:
            await asyncio.sleep(self.random.uniform(0.2, 0.8))
            self._inject_fault()
        self._over = True
        await asyncio.wait_for(asyncio.gather(*callers), 120)

    @property
    def _seen_enough(self) -> bool:
        """True once enough faults have happened: a slow machine needs more time."""
        return min(self.outcomes["graded"], self.outcomes["lost"]) > 10 and len(self.done) == 3

    async def _work(self, caller: int) -> None:
        number = 0
        while not self._over:
            number += 1
            task = self.random.choices(
                [f"sleep {self.random.uniform(0, 0.5)}", "block 600", "die in chaos"], [97, 1, 1]
            )[0]
            self._record(await self._supervisor.run(order(f"h{caller}/{number}", task)))

    def _record(self, result: Result) -> None:
        self.results[result.ticket] += 1
        if isinstance(result.verdict, Graded):
            self.outcomes["graded"] += 1
        else:
            assert isinstance(result.verdict, Void) and result.verdict.cause is Cause.LOST, result
            self.outcomes["lost"] += 1

    def _inject_fault(self) -> None:
        alive = [s for s in self._supervisor.status() if s.phase is WorkerState.READY]
        if not alive:
            return
        fault = self.random.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
        try:
            os.kill(pid_of(self.random.choice(alive).where), fault)
        except ProcessLookupError:
            return
        self.done[fault.name] += 1


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 400)
async def test_every_order_is_resolved_once_when_workers_die(engine: Engine, mark: Mark):
    before = mark.processes().keys()
    limits = options(deaths=1000, dead_after=1.0, hung_after=1.5, end_within=2.0)
    busy = spec(concurrency=TICKETS, grace_seconds=0.5)
    async with Supervisor(engine, busy, number=WORKERS, options=limits) as supervisor:
        await supervisor.wait_ready()
        chaos = Chaos(supervisor)
        await chaos.run()
        assert set(chaos.results.values()) == {1}
        await until(lambda: supervisor.free == WORKERS * TICKETS, 60)
    assert not workers_of(mark) - before


RUN = """
import asyncio, sys
from scripted_environment import order, spec
from supervised import options
from plimsoll.workers.engines.process import ProcessEngine
from plimsoll.workers.engines.ray import RayEngine, RayOptions
from plimsoll.workers.controller.supervisor import Supervisor

async def main():
    address, task = sys.argv[1:]
    engine = RayEngine(RayOptions(address=address)) if address else ProcessEngine()
    limits = options()
    async with Supervisor(engine, spec(), number=1, options=limits) as supervisor:
        await supervisor.run(order("a", "sleep 0.1"))
        print("ran", flush=True)
        result = await supervisor.run(order("b", task))
        print(result.verdict.verdict, flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def running_process(address: str, task: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a run in a separate process, and wait until its worker runs the second ticket."""
    here = Path(__file__).parent
    paths = {**os.environ, "PYTHONPATH": f"{here}:{here.parent}"}
    command = [sys.executable, "-c", RUN, address, task]
    run = await asyncio.create_subprocess_exec(*command, env=paths, stdout=subprocess.PIPE)
    try:
        assert await read_line(run) == "ran"
        await asyncio.sleep(0.5)
        yield run
    finally:
        if run.returncode is None:
            run.kill()
        await run.wait()


async def read_line(run: asyncio.subprocess.Process) -> str:
    assert run.stdout is not None
    return (await run.stdout.readline()).decode().strip()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sleep 600", "block 600"])
@pytest.mark.parametrize("name", ["process", "ray"])
async def test_workers_end_with_a_killed_run(
    name: str, task: str, request: pytest.FixtureRequest, mark: Mark
):
    address = request.getfixturevalue("shared_cluster").address if name == "ray" else ""
    before = mark.processes().keys()
    async with running_process(address, task) as run:
        run.kill()
    await until(lambda: not workers_of(mark) - before, 120)


def workers_of(mark: Mark) -> set[int]:
    return {
        pid
        for pid, command in mark.processes().items()
        if "plimsoll.workers.worker.main" in command
    }


@pytest.mark.slow
async def test_a_suspended_controller_does_not_count_its_workers_as_dead(mark: Mark):
    async with running_process("", "sleep 9") as run:
        run.send_signal(signal.SIGSTOP)
        await asyncio.sleep(6)
        run.send_signal(signal.SIGCONT)
        assert await read_line(run) == "graded"
        assert await run.wait() == 0
