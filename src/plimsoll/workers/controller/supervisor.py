"""The supervisor: runs tickets on workers, wherever an engine places them.

An order is resolved exactly once: by its worker's result or, if the worker dies first, as void
and lost. Nothing waits for a message to a dead worker.
"""

import asyncio
import collections
from collections.abc import Iterable
from types import TracebackType
from typing import Never, Self

from plimsoll.core.errors import WorkerError
from plimsoll.core.versions import Version
from plimsoll.trials.verdicts import Cause
from plimsoll.workers.controller.fleet import Fleet, SupervisorOptions
from plimsoll.workers.controller.protocol import SandboxReports
from plimsoll.workers.controller.roster import Job, WorkerStatus
from plimsoll.workers.engines.protocol import Engine
from plimsoll.workers.messages import Cancel, Drain, Kind, Order, Result, WorkerSpec

__all__ = ["Supervisor", "SupervisorOptions"]


class Supervisor:
    """The workers of a run. An async context manager: leaving it ends them all."""

    def __init__(
        self,
        engine: Engine,
        spec: WorkerSpec,
        *,
        number: int,
        options: SupervisorOptions | None = None,
    ) -> None:
        options = options or SupervisorOptions()
        self._end_within = options.patience.end_within
        self._fleet = Fleet(engine, spec, number, options, self._dispatch)
        self._waiting = collections.deque[Job]()
        self._jobs: dict[str, Job] = {}
        self._room = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._fleet.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._fleet.__aexit__(exc_type, exc, traceback)

    @property
    def free(self) -> int:
        """The number of free slots of all workers."""
        over = self._fleet.closing or self._fleet.failure
        return 0 if over else self._fleet.roster.free

    @property
    def slots(self) -> int:
        return self._fleet.roster.slots

    @property
    def reports(self) -> SandboxReports:
        return self._fleet.reports

    @property
    def phases(self) -> dict[str, str]:
        """Workers do not report phases: every ticket with a worker is running."""
        return {ticket: "running" for ticket, job in self._jobs.items() if job.worker}

    def status(self) -> list[WorkerStatus]:
        return [member.status() for member in self._fleet.roster]

    @property
    def waiting(self) -> str:
        """A message about workers that have no host yet; empty if there are none."""
        return self._fleet.waiting

    async def run(self, order: Order) -> Result:
        """Run a ticket. If no worker has a free slot, it waits for one.

        The death of its worker makes it void and lost, the end of the run void and cancelled.
        Raises `WorkerError` if workers cannot be kept alive while the ticket waits for a slot.
        """
        if order.ticket in self._jobs:
            raise ValueError(f"ticket {order.ticket} runs already")
        job = self._jobs[order.ticket] = Job(order)
        job.result.add_done_callback(lambda _: self._jobs.pop(order.ticket, None))
        self._waiting.append(job)
        self._dispatch()
        try:
            return await job.result
        finally:
            if job.result.cancelled() and job.worker:
                self._fleet.send(job.worker, Cancel(order.ticket, "its caller no longer waits"))

    def cancel(self, ticket: str, reason: str) -> None:
        """Cancel a ticket; `run` returns its result, void and cancelled."""
        if (job := self._jobs.get(ticket)) is None:
            return
        if job.worker:
            self._fleet.send(job.worker, Cancel(ticket, reason))
        else:
            job.void(Cause.CANCELLED, reason)

    def expect(self, kinds: Iterable[Kind]) -> None:
        """Announce the kinds of the next orders, in order, without those given to `run`.

        Replaces the previous announcement.
        """
        self._fleet.expect(kinds)

    def set_version(self, version: Version) -> None:
        """Set the version that the policy generates with from now on."""
        self._fleet.set_version(version)

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        """Tell workers that the policy is paused for new weights, or resumed.

        With `drains` it still answers the requests that it received before the pause.
        """
        self._fleet.set_paused(paused, drains=drains)

    async def wait_ready(self) -> None:
        """Wait until a worker is ready. Raises `WorkerError` if none can start."""
        await self._unless_failed(self._fleet.answered)

    async def wait_free(self) -> None:
        """Wait for a free slot. Raises `WorkerError` if there will never be one."""
        await self._unless_failed(self._room)

    async def failed(self) -> Never:
        """Wait until workers cannot be kept alive, and raise the `WorkerError` with the reason."""
        await self._fleet.failed()

    async def drain(self, grace: float) -> None:
        """Take no more tickets, cancel the running ones after `grace` seconds, end all workers."""
        why = "the run is being stopped"
        await self._fleet.end_all(why, Drain(grace), grace + self._end_within)

    def _dispatch(self) -> None:
        """Give pending tickets to workers in FIFO order; resolve those that no worker will take."""
        fleet = self._fleet
        while self._waiting:
            job = self._waiting[0]
            if fleet.closing:
                job.void(Cause.CANCELLED, fleet.closing)
            elif fleet.failure is not None:
                job.fail(fleet.failure_again())
            elif not job.result.done() and not fleet.give(job):
                break
            self._waiting.popleft()
        if fleet.failure is not None and not isinstance(fleet.failure, WorkerError):
            # An unexpected exception in this process: nothing will resolve the running tickets.
            for job in list(self._jobs.values()):
                job.fail(fleet.failure_again())
        if self.free:
            self._room.set()
        else:
            self._room.clear()

    async def _unless_failed(self, event: asyncio.Event) -> None:
        """Wait for an event, or raise the failure that prevents it."""
        waits = [asyncio.create_task(event.wait()), asyncio.create_task(self._fleet.failed())]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for task in done:
            task.result()
