"""The controller of a run with many trials in flight, for `bench_ledger.py`.

Everything is real but the workers: an engine that starts none, whose trials end when the
benchmark says so.
"""

import asyncio
import os
import random
import statistics
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from plimsoll.core.endings import Ending
from plimsoll.core.ids import Owner
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.config import load_config
from plimsoll.runs.controller import Controller
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.kept import Kept
from plimsoll.runs.plan import Plan
from plimsoll.runs.watching import Watching
from plimsoll.runs.worker_spec import worker_spec
from plimsoll.trials.verdicts import Graded
from plimsoll.workers.engines.protocol import Exit, Opening
from plimsoll.workers.messages import Ready
from plimsoll.workers.place import Result
from plimsoll.workers.supervisor import Supervisor

__all__ = ["Turn", "controller_turn"]

WORKERS, GROUP, TASKS = 50, 8, 200
GOOD = Graded(1.0, Ending.SUBMITTED)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn of the controller costs, in milliseconds of its thread."""

    running: int
    median: float
    mean: float
    """With the turns in which workers are told what comes."""


class _Placed:
    """A worker that is nowhere."""

    where = "nowhere"
    is_placed = True

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self._killed = asyncio.Event()

    async def ended(self) -> Exit:
        await self._killed.wait()
        return Exit("it was killed", killed=True)

    async def kill(self) -> None:
        self._killed.set()


class _NoEngine:
    """Starts nothing."""

    name, host = "none", "127.0.0.1"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    async def start(self, opening: Opening) -> _Placed:
        return _Placed(opening.invitation.worker)

    def describe_wait(self, workers: int) -> str:
        return f"{workers} workers"


def _plan(folder: Path, running: int) -> Plan:
    for number in range(TASKS):
        task = folder / "tasks" / f"task-{number}"
        task.mkdir(parents=True)
        (task / "task.toml").write_text('schema_version = "1.4"\n')
        (task / "instruction.md").write_text("Do nothing.\n")
    (folder / "run.toml").write_text(
        f"""[run]
tasks = "tasks"
agent = "nop"
group_size = {GROUP}
batch_groups = {running // GROUP}
depth = 2
max_staleness = 4
steps = 1000
canary_every = 0
[workers]
number = {WORKERS}
concurrency = {running // WORKERS}
[pool]
reuse = "fresh"
"""
    )
    return Plan.make(load_config(folder / "run.toml"))


async def controller_turn(folder: Path, running: int, turns: int) -> Turn:
    """Turns with so many trials in flight; before each one trial ends, and another starts."""
    plan = _plan(folder, running)
    directory = RunDirectory.create(folder / "run", now=datetime.now())
    owner = Owner("bench", os.getpid(), "")
    async with (
        Ledger(directory.path, plan.settings, owner, time.time) as ledger,
        Supervisor(
            _NoEngine(), worker_spec(plan, directory), number=plan.config.workers.number
        ) as supervisor,
    ):
        crew = supervisor._crew
        await asyncio.sleep(0)
        for member in crew.roster:
            crew._hear(member, Ready(member.worker, "nowhere", 0))
        watching = Watching(Breaker(plan.watched(stops=False)), None, plan.tasks, 1)
        controller = Controller(
            plan, directory, ledger, supervisor, watching, Kept(directory), "bench"
        )
        async with controller._tasks:
            while controller.running < running:
                await controller._turn()
            took: list[float] = []
            pick = random.Random(0)
            for _ in range(turns):
                ticket = pick.choice(list(supervisor._jobs))
                member = crew.roster.find(supervisor._jobs[ticket].worker)
                assert member is not None
                kept = controller._running[ticket]
                crew._finish(member, Result(ticket=ticket, verdict=GOOD, seconds=1.0))
                await kept
                began = time.thread_time()
                await controller._turn()
                took.append(1000 * (time.thread_time() - began))
            controller.stop("it was measured")
            await controller.drain(0.0)
    return Turn(running, statistics.median(took), statistics.mean(took))
