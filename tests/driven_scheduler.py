"""A scheduler whose trials end on the caller's command. All parts are real except the workers."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from plimsoll.core.endings import Ending
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.breaker.breaker import Breaker, BreakerMonitor
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollout_buffer import RolloutBuffer
from plimsoll.runs.scheduling.scheduler import Scheduler
from plimsoll.runs.worker_setup import worker_spec
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.testing.workers import IdleEngine
from plimsoll.trials.verdicts import Graded
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.messages import Ready, Result

__all__ = ["DrivenScheduler", "driven_scheduler"]

_GOOD = Graded(1.0, Ending.SUBMITTED)


class DrivenScheduler:
    """Runs turns of the scheduler, and ends single trials between them."""

    def __init__(self, scheduler: Scheduler, supervisor: Supervisor) -> None:
        self._scheduler = scheduler
        self._supervisor = supervisor

    @property
    def tickets(self) -> list[str]:
        """The tickets of the running trials."""
        return list(self._supervisor._jobs)

    async def turn(self) -> None:
        await self._scheduler._turn()

    async def fill(self, running: int) -> None:
        """Run turns until `running` trials run."""
        while self._scheduler.running < running:
            await self.turn()

    async def finish(self, ticket: str) -> None:
        """Grade a running trial."""
        supervisor = self._supervisor
        entry = supervisor._roster.find(supervisor._jobs[ticket].worker)
        assert entry is not None
        following = self._scheduler._running[ticket]
        supervisor._finish(entry, Result(ticket=ticket, verdict=_GOOD, seconds=1.0))
        await following

    def stop_prewarming(self) -> None:
        """Announce no more trials to workers. The announcements are periodic, not once a turn."""
        self._scheduler._prewarm_at = float("inf")


@asynccontextmanager
async def driven_scheduler(plan: Plan, directory: RunDirectory) -> AsyncGenerator[DrivenScheduler]:
    """The scheduler of a run whose workers are all ready."""
    number = plan.config.workers.number
    async with (
        Ledger(directory.path, plan.settings, this_process(), time.time) as ledger,
        Supervisor(IdleEngine(), worker_spec(plan, directory), number=number) as supervisor,
    ):
        await asyncio.sleep(0)
        for entry in supervisor._roster:
            supervisor._handle(entry, Ready("nowhere"))
        monitor = BreakerMonitor(Breaker(plan.breaker_limits(stops=False)), None, plan.tasks, 1)
        scheduler = Scheduler(
            plan,
            directory,
            ledger,
            supervisor,
            monitor,
            RolloutBuffer(directory),
            "driven",
            plan.order(),
        )
        async with scheduler._tasks:
            yield DrivenScheduler(scheduler, supervisor)
            scheduler.stop("it was measured")
            await scheduler.drain(0.0)
