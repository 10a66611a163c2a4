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

__all__ = ["DrivenController", "driven_controller"]

_GOOD = Graded(1.0, Ending.SUBMITTED)


class DrivenController:
    """Runs turns of the controller, and ends single trials between them."""

    def __init__(self, controller: Scheduler, supervisor: Supervisor) -> None:
        self._controller = controller
        self._supervisor = supervisor

    @property
    def tickets(self) -> list[str]:
        """The tickets of the running trials."""
        return list(self._supervisor._jobs)

    async def turn(self) -> None:
        await self._controller._turn()

    async def fill(self, running: int) -> None:
        """Run turns until `running` trials run."""
        while self._controller.running < running:
            await self.turn()

    async def finish(self, ticket: str) -> None:
        """Grade a running trial."""
        supervisor = self._supervisor
        entry = supervisor._roster.find(supervisor._jobs[ticket].worker)
        assert entry is not None
        kept = self._controller._running[ticket]
        supervisor._finish(entry, Result(ticket=ticket, verdict=_GOOD, seconds=1.0))
        await kept

    def stop_prewarming(self) -> None:
        """Announce no more trials to workers. The announcements are periodic, not once a turn."""
        self._controller._prewarm_at = float("inf")


@asynccontextmanager
async def driven_controller(
    plan: Plan, directory: RunDirectory
) -> AsyncGenerator[DrivenController]:
    """The controller of a run whose workers are all ready."""
    number = plan.config.workers.number
    async with (
        Ledger(directory.path, plan.settings, this_process(), time.time) as ledger,
        Supervisor(IdleEngine(), worker_spec(plan, directory), number=number) as supervisor,
    ):
        await asyncio.sleep(0)
        for entry in supervisor._roster:
            supervisor._handle(entry, Ready("nowhere"))
        watching = BreakerMonitor(Breaker(plan.breaker_limits(stops=False)), None, plan.tasks, 1)
        controller = Scheduler(
            plan,
            directory,
            ledger,
            supervisor,
            watching,
            RolloutBuffer(directory),
            "driven",
            plan.order(),
        )
        async with controller._tasks:
            yield DrivenController(controller, supervisor)
            controller.stop("it was measured")
            await controller.drain(0.0)
