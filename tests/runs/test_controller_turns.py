"""A turn of the controller costs the same however many trials run."""

import asyncio
import sys
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import pytest
from rollout_runs import MakeConfig

from plimsoll.core.endings import Ending
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.config import Config
from plimsoll.runs.controller import Controller
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.kept import Kept
from plimsoll.runs.plan import Plan
from plimsoll.runs.watching import Watching
from plimsoll.runs.worker_spec import worker_spec
from plimsoll.sandboxes.owners import myself
from plimsoll.trials.verdicts import Graded
from plimsoll.workers.engines.protocol import Exit, Opening
from plimsoll.workers.messages import Ready
from plimsoll.workers.place import Result
from plimsoll.workers.supervisor import Supervisor

WORKERS, GROUP = 4, 4
GOOD = Graded(1.0, Ending.SUBMITTED)


class Nowhere:
    """A worker that an engine claims to have started."""

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


class NoEngine:
    """Starts no worker, and says that it has."""

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

    async def start(self, opening: Opening) -> Nowhere:
        return Nowhere(opening.invitation.worker)

    def describe_wait(self, workers: int) -> str:
        return f"{workers} workers"


class Work:
    """Counts the instructions of everything that begins while it is entered."""

    def __init__(self) -> None:
        self.done = 0

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        self.done += event == "opcode"
        return self._trace


async def work_of_turns(config: Config, directory: RunDirectory, running: int) -> list[int]:
    """What a turn takes in which one trial of so many has ended, time after time."""
    plan = Plan.make(config)
    async with (
        Ledger(directory.path, plan.settings, myself(), time.time) as ledger,
        Supervisor(NoEngine(), worker_spec(plan, directory), number=WORKERS) as supervisor,
    ):
        crew = supervisor._crew
        await asyncio.sleep(0)
        for member in crew.roster:
            crew._hear(member, Ready(member.worker, "nowhere", 0))
        watching = Watching(Breaker(plan.watched(stops=False)), None, plan.tasks, 1)
        controller = Controller(
            plan, directory, ledger, supervisor, watching, Kept(directory), "test"
        )
        controller._look_at = float("inf")  # what comes is told now and then, not each turn
        took: list[int] = []
        async with controller._tasks:
            while controller.running < running:
                await controller._turn()
                controller._told_of = supervisor.places
            for _ in range(3 * GROUP):
                ticket = next(iter(supervisor._jobs))
                member = crew.roster.find(supervisor._jobs[ticket].worker)
                assert member is not None
                kept = controller._running[ticket]
                crew._finish(member, Result(ticket=ticket, verdict=GOOD, seconds=1.0))
                await kept
                with Work() as work:
                    await controller._turn()
                took.append(work.done)
            controller.stop("it was counted")
            await controller.drain(0.0)
    return sorted(took)


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
@pytest.mark.parametrize("reuse", ["none", "fresh"])
async def test_a_turn_does_not_look_at_every_trial_that_runs(
    make_config: MakeConfig, tmp_path: Path, reuse: str
):
    medians: list[int] = []
    names = [f"coin-{number}" for number in range(10)]
    config = make_config(*names, group_size=GROUP, depth=2, max_staleness=4, steps=99)
    for running in (40, 800):
        run = {"batch_groups": running // GROUP}
        workers = {"number": WORKERS, "concurrency": running // WORKERS}
        made = config.model_copy(
            update={
                "run": config.run.model_copy(update=run),
                "workers": config.workers.model_copy(update=workers),
                "pool": config.pool.model_copy(update={"reuse": reuse}),
            }
        )
        directory = RunDirectory(tmp_path / f"run-{running}")
        directory.trials.mkdir(parents=True)
        took = await work_of_turns(made, directory, running)
        medians.append(took[len(took) // 2])
    few, many = medians
    assert many < 1.5 * few, f"{few:,} instructions with 40 running, {many:,} with 800"
