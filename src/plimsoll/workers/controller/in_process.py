"""A worker on the controller's own event loop, without a process or a socket.

For small evaluations: it starts at once. It runs the same environment as a worker process.
"""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Never, Self

from plimsoll.core.versions import Version
from plimsoll.trials.verdicts import Cause, Void
from plimsoll.workers.controller.roster import WorkerStatus
from plimsoll.workers.controller.sandbox_reports import SandboxReports
from plimsoll.workers.messages import (
    EnvironmentOptions,
    Finished,
    Kind,
    Order,
    Result,
)
from plimsoll.workers.worker.environment import trial_environment
from plimsoll.workers.worker.running_tickets import Load, RunningTickets, TrialRunner

__all__ = ["InProcessWorker"]

_STOPPED = "the run is being stopped"
_REPORT_SECONDS = 0.25


class InProcessWorker:
    """One worker with `concurrency` slots in this process."""

    def __init__(self, options: EnvironmentOptions, concurrency: int) -> None:
        self._options = options
        self._concurrency = concurrency
        self._load = Load()
        self._results: dict[str, asyncio.Future[Result]] = {}
        self._stack = AsyncExitStack()
        self.reports = SandboxReports()
        self.phases: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self._report)
            self._runner: TrialRunner = await stack.enter_async_context(
                trial_environment(self._options, self._enter_phase)
            )
            self._tickets = RunningTickets(self._runner, self._load, self._finish)
            stack.push_async_callback(self._tickets.close, Void(Cause.CANCELLED, _STOPPED))
            reporting = asyncio.create_task(self._keep_reporting())
            stack.callback(reporting.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._load.leaving = True
        await self._stack.aclose()

    @property
    def free(self) -> int:
        return 0 if self._load.leaving else self._concurrency - len(self._results)

    @property
    def slots(self) -> int:
        return 0 if self._load.leaving else self._concurrency

    @property
    def waiting(self) -> str:
        return ""

    def status(self) -> list[WorkerStatus]:
        return []

    async def run(self, order: Order) -> Result:
        result = self._results[order.ticket] = asyncio.get_running_loop().create_future()
        self.phases[order.ticket] = "start"
        try:
            self._tickets.take(order)
            return await result
        finally:
            del self._results[order.ticket]
            self.phases.pop(order.ticket, None)

    def cancel(self, ticket: str, reason: str) -> None:
        self._tickets.cancel(ticket, Void(Cause.CANCELLED, reason))

    def expect(self, kinds: Iterable[Kind]) -> None:
        # In the next turn of the loop, after the first step of the orders that were given before:
        # until then, their sandboxes are expected only by the previous announcement.
        asyncio.get_running_loop().call_soon(self._expect, tuple(kinds))

    def set_version(self, version: Version) -> None:
        self._runner.set_version(version)

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        self._runner.set_paused(paused, drains=drains)

    async def wait_ready(self) -> None:
        """Return at once: the worker is ready when it is entered."""

    async def failed(self) -> Never:
        while True:
            await asyncio.Event().wait()

    async def drain(self, grace: float) -> None:
        self._load.leaving = True
        self._runner.expect(())
        try:
            async with asyncio.timeout(grace):
                await self._tickets.wait_empty()
        except TimeoutError:
            await self._tickets.close(Void(Cause.CANCELLED, _STOPPED))

    def _expect(self, kinds: tuple[Kind, ...]) -> None:
        if not self._load.leaving:
            self._runner.expect(kinds)

    def _enter_phase(self, ticket: str, phase: str) -> None:
        if ticket in self.phases:
            self.phases[ticket] = phase

    def _finish(self, finished: Finished) -> None:
        self._report()
        future = self._results.get(finished.result.ticket)
        if future is not None and not future.done():
            future.set_result(finished.result)

    def _report(self) -> None:
        runner = getattr(self, "_runner", None)
        if runner is not None and (report := runner.take_report()) is not None:
            self.reports.add(report)

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            self._report()
