"""Workers whose trials are plain coroutines, and evaluations that run on them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Never, Self

import pytest

from plimsoll.config.file import Config
from plimsoll.core.endings import Ending
from plimsoll.core.versions import Version
from plimsoll.runs import session
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.evaluation.trial_run import (
    TrialSetRequest,
    TrialSetRun,
    evaluation_settings,
)
from plimsoll.runs.plan import Plan
from plimsoll.runs.scheduling.trial_set import TrialGroup
from plimsoll.runs.task_sets import TaskSet
from plimsoll.tasks.task import Task
from plimsoll.trials.verdicts import Cause, Graded, Verdict, Void
from plimsoll.workers.controller.roster import WorkerStatus
from plimsoll.workers.controller.sandbox_reports import SandboxReports
from plimsoll.workers.messages import Kind, Order, Result

__all__ = ["HALF", "ONE", "ScriptedWorkers", "Trial", "evaluation", "use_workers"]

ONE = Graded(1.0, Ending.SUBMITTED, {"reward": 1.0})
HALF = Graded(0.5, Ending.SUBMITTED, {"reward": 0.5})

Trial = Callable[[Order], Awaitable[Verdict]]


class ScriptedWorkers:
    """Slots of this process. The script returns the verdict of each order."""

    waiting = ""

    def __init__(self, trial: Trial, slots: int) -> None:
        self.phases: dict[str, str] = {}
        self.reports = SandboxReports()
        self.orders: list[Order] = []
        self.expected: list[list[Kind]] = []
        self.most = 0
        self._trial = trial
        self._slots = slots
        self._running: dict[str, asyncio.Task[Verdict]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.drain(0)

    @property
    def free(self) -> int:
        return self._slots - len(self._running)

    @property
    def slots(self) -> int:
        return self._slots

    def status(self) -> list[WorkerStatus]:
        return []

    async def run(self, order: Order) -> Result:
        self.orders.append(order)
        task = asyncio.ensure_future(self._trial(order))
        self._running[order.ticket] = task
        self.most = max(self.most, len(self._running))
        try:
            await asyncio.wait([task])
            cancelled = Void(Cause.CANCELLED, "the run is being stopped")
            verdict = cancelled if task.cancelled() else task.result()
        finally:
            del self._running[order.ticket]
        return Result(ticket=order.ticket, verdict=verdict, seconds=0.0, trial=order.ticket)

    def cancel(self, ticket: str, reason: str) -> None:
        del reason
        if ticket in self._running:
            self._running[ticket].cancel()

    def expect(self, kinds: Iterable[Kind]) -> None:
        self.expected.append(list(kinds))

    def set_version(self, version: Version) -> None:
        pass

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        pass

    async def wait_ready(self) -> None:
        pass

    async def failed(self) -> Never:
        while True:
            await asyncio.Event().wait()

    async def drain(self, grace: float) -> None:
        del grace
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)


def use_workers(monkeypatch: pytest.MonkeyPatch, trial: Trial, slots: int = 2) -> ScriptedWorkers:
    """Workers for the next run of this process, in place of real ones."""
    workers = ScriptedWorkers(trial, slots)
    monkeypatch.setattr(session, "make_workers", lambda *_, **__: workers)
    return workers


def evaluation(
    monkeypatch: pytest.MonkeyPatch,
    tasks: Sequence[Task],
    trial: Trial,
    out: Path,
    *,
    attempts: int = 1,
    concurrency: int = 2,
    agents: Sequence[str] = ("",),
    limits: BreakerLimits | None = None,
    canaries: Canaries | None = None,
    resumes: bool = False,
    pool: str | None = None,
) -> tuple[TrialSetRun, ScriptedWorkers]:
    """An evaluation of these tasks, and its workers."""
    workers = use_workers(monkeypatch, trial, concurrency)
    request = TrialSetRequest(
        path=Path("tasks"),
        backend="local",
        concurrency=concurrency,
        pattern=None,
        out=out,
        config=None,
        pool=pool,
    )
    config = request.applied_to(Config(), agent="oracle")
    plan = Plan(
        config=config,
        settings=evaluation_settings(concurrency),
        trained=TaskSet(tasks={task.name: task for task in tasks}),
        held_out=TaskSet(),
        canaries=canaries,
        assets=None,
        policy=None,
        served=None,
        environment={},
    )
    groups = [
        TrialGroup(task, agent, attempt)
        for attempt in range(1, attempts + 1)
        for task in tasks
        for agent in agents
    ]
    run = TrialSetRun(
        plan,
        groups,
        breaker=Breaker(limits or BreakerLimits(stops=False)),
        request=request,
        out=out,
        kind="eval",
        resumes=resumes,
    )
    return run, workers
