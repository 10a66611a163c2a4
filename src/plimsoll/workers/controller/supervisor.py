"""The supervisor: starts, monitors, ends and replaces workers, and runs tickets on them.

A worker that is full, ending or not yet ready gets no tickets. A worker that dies, falls silent or
hangs loses its tickets at once and is replaced. Leaving the supervisor leaves no worker behind.

An order is resolved exactly once: by its worker's result or, if the worker dies first, as void
and lost. Nothing waits for a message to a dead worker.
"""

import asyncio
import collections
import contextlib
import logging
import math
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Never, Self, TypeVar

from plimsoll.core.errors import WorkerError
from plimsoll.core.versions import Version
from plimsoll.trials.verdicts import Cause
from plimsoll.workers.channel import ControllerSocket
from plimsoll.workers.controller.crashes import Crashes, Death, cannot_start
from plimsoll.workers.controller.roster import (
    Job,
    Roster,
    WorkerEntry,
    WorkerState,
    WorkerStatus,
    WorkerTimeouts,
)
from plimsoll.workers.controller.sandbox_reports import SandboxReports
from plimsoll.workers.engines.protocol import Engine, Exit
from plimsoll.workers.messages import (
    Beat,
    Begin,
    Cancel,
    Drain,
    Expect,
    Failed,
    Finished,
    Hello,
    Kind,
    NewVersion,
    Order,
    Paused,
    Ready,
    Result,
    Run,
    SandboxReport,
    Stop,
    ToWorker,
    WorkerSpec,
)

__all__ = ["Supervisor", "SupervisorOptions"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_TICK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
"""Delay before the replacement of a worker that never became ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """Time limits for workers, and the number of deaths that stops a run."""

    timeouts: WorkerTimeouts = field(default_factory=WorkerTimeouts)
    crash_deaths: int = 5
    """Deaths per worker of the run, within `crash_seconds`, that stop it."""
    crash_seconds: float = 300.0


class Supervisor:
    """Keeps `number` workers that take tickets. An async context manager: leaving it ends them
    all, and leaves its engine."""

    def __init__(
        self,
        engine: Engine,
        spec: WorkerSpec,
        *,
        number: int,
        options: SupervisorOptions | None = None,
    ) -> None:
        options = options or SupervisorOptions()
        self.reports = SandboxReports()
        self._engine = engine
        self._spec = spec
        self._number = number
        self._timeouts = options.timeouts
        self._crashes = Crashes(options.crash_deaths * number, options.crash_seconds)
        self._pending = collections.deque[Job]()
        self._jobs: dict[str, Job] = {}
        self._version: Version | None = None
        self._paused = Paused(False)
        self._named = 0
        self._warned_of_limit = False
        self._failed = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stack = contextlib.AsyncExitStack()
        self._roster = Roster(spec.concurrency)
        self._was_ready = asyncio.Event()
        """Set once a worker has been ready."""
        self._failure: BaseException | None = None
        """The reason why workers cannot be kept alive."""
        self._closing = ""
        """The reason why no more workers are started; empty while they are."""

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._engine)
            self._socket = await stack.enter_async_context(ControllerSocket(self._engine.host))
            self._stack = stack.pop_all()
        self._spawn(self._listen())
        self._spawn(self._watch())
        self._replenish()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._end_all("the run was stopped", Stop(), self._timeouts.end_within)
        finally:
            # If the wait was interrupted, the engine kills the remaining workers.
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stack.aclose()

    @property
    def free(self) -> int:
        """The number of free slots of all workers."""
        return 0 if self._closing or self._failure else self._roster.free

    @property
    def slots(self) -> int:
        return self._roster.slots

    @property
    def phases(self) -> dict[str, str]:
        """Workers do not report phases: every ticket with a worker is running."""
        return {ticket: "running" for ticket, job in self._jobs.items() if job.worker}

    def status(self) -> list[WorkerStatus]:
        return [entry.status() for entry in self._roster]

    @property
    def waiting(self) -> str:
        """A message about workers that have no host yet; empty if there are none.

        The part that changes all the time, the waiting time, comes last, after a dot.
        """
        waits = [e.waited for e in self._roster if e.is_waiting]
        return f"{self._engine.describe_wait(len(waits))} · {max(waits):.0f} s" if waits else ""

    async def run(self, order: Order) -> Result:
        """Run a ticket. If no worker has a free slot, it waits for one.

        The death of its worker makes it void and lost, the end of the run void and cancelled.
        Raises `WorkerError` if workers cannot be kept alive while the ticket waits for a slot.
        """
        if order.ticket in self._jobs:
            raise ValueError(f"ticket {order.ticket} runs already")
        job = self._jobs[order.ticket] = Job(order)
        job.result.add_done_callback(lambda _: self._jobs.pop(order.ticket, None))
        self._pending.append(job)
        self._dispatch()
        try:
            return await job.result
        finally:
            if job.result.cancelled() and job.worker:
                self._send(job.worker, Cancel(order.ticket, "its caller no longer waits"))

    def cancel(self, ticket: str, reason: str) -> None:
        """Cancel a ticket; `run` returns its result, void and cancelled."""
        if (job := self._jobs.get(ticket)) is None:
            return
        if job.worker:
            self._send(job.worker, Cancel(ticket, reason))
        else:
            job.void(Cause.CANCELLED, reason)

    def expect(self, kinds: Iterable[Kind]) -> None:
        """Announce the kinds of the next orders, in order, without those given to `run`.

        Replaces the previous announcement.
        """
        for worker, share in self._roster.expect(kinds).items():
            self._send(worker, Expect(share))

    def set_version(self, version: Version) -> None:
        """Set the version that the policy generates with from now on."""
        self._version = version
        self._send_all(NewVersion(version))

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        """Tell workers that the policy is paused for new weights, or resumed.

        With `drains` it still answers the requests that it received before the pause.
        """
        self._paused = Paused(paused, drains)
        self._send_all(self._paused)

    async def wait_ready(self) -> None:
        """Wait until a worker is ready. Raises `WorkerError` if none can start."""
        await self._unless_failed(self._was_ready)

    async def failed(self) -> Never:
        """Wait until workers cannot be kept alive, and raise the `WorkerError` with the reason."""
        await self._failed.wait()
        raise self._failure_again()

    async def drain(self, grace: float) -> None:
        """Take no more tickets, cancel the running ones after `grace` seconds, end all workers."""
        why = "the run is being stopped"
        await self._end_all(why, Drain(grace), grace + self._timeouts.end_within)

    # --- the queue of tickets -------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give pending tickets to workers in FIFO order; resolve those that no worker will take."""
        while self._pending:
            job = self._pending[0]
            if self._closing:
                job.void(Cause.CANCELLED, self._closing)
            elif self._failure is not None:
                job.fail(self._failure_again())
            elif not job.result.done() and not self._give(job):
                break
            self._pending.popleft()
        if self._failure is not None and not isinstance(self._failure, WorkerError):
            # An unexpected exception in this process: nothing will resolve the running tickets.
            for job in list(self._jobs.values()):
                job.fail(self._failure_again())

    def _give(self, job: Job) -> bool:
        """Give a ticket to the least loaded worker; False if none has a free slot."""
        if (entry := self._roster.least_busy(job.order.kind)) is None:
            return False
        entry.give(job)
        self._send(entry.worker, Run(job.order))
        return True

    def _send(self, worker: str, message: ToWorker) -> None:
        self._socket.send(worker, message)

    def _send_all(self, message: ToWorker) -> None:
        for entry in self._roster:
            if entry.ready:
                self._send(entry.worker, message)

    async def _end_all(self, why: str, how: Drain | Stop, within: float) -> None:
        """Start no more workers, ask all to end, and wait for them; late ones are killed."""
        self._closing = self._closing or why
        for entry in self._roster:
            self._ask_to_end(entry, how, within)
        self._dispatch()
        await self._all_ended.wait()

    async def _unless_failed(self, event: asyncio.Event) -> None:
        """Wait for an event, or raise the failure that prevents it."""
        waits = [asyncio.create_task(event.wait()), asyncio.create_task(self.failed())]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for task in done:
            task.result()

    def _failure_again(self) -> BaseException:
        """The failure for another waiter: an error raised twice would collect both tracebacks."""
        assert self._failure is not None
        if isinstance(self._failure, WorkerError):
            return WorkerError(*self._failure.args)
        return self._failure

    # --- lifecycle of a worker ------------------------------------------------------------

    def _replenish(self, after: float = 0.0) -> None:
        if self._closing or self._failure is not None:
            return
        for _ in range(self._number - self._roster.active):
            self._named += 1
            entry = WorkerEntry(f"worker-{self._named}")
            self._roster.add(entry)
            self._all_ended.clear()
            entry.life = self._spawn(self._run_worker(entry, after))
            # A callback, not part of the task: a task cancelled before its first step never runs.
            entry.life.add_done_callback(lambda life, who=entry: self._on_end(who, life))

    async def _run_worker(self, entry: WorkerEntry, after: float) -> Exit:
        """Start a worker and wait for its end."""
        await asyncio.sleep(after)
        entry.waited = 0.0
        request = self._socket.prepare(entry.worker, self._spec.environment)
        try:
            entry.placed = await self._engine.start(request)
            return await entry.placed.ended()
        except WorkerError as error:
            return Exit(str(error))

    def _on_end(self, entry: WorkerEntry, life: asyncio.Task[Exit]) -> None:
        known = not life.cancelled() and life.exception() is None
        self._remove(entry, life.result() if known else Exit("it was given up", killed=True))
        if not self._roster:
            self._all_ended.set()

    def _remove(self, entry: WorkerEntry, exit: Exit) -> None:
        """Remove a worker that has ended.

        After an unrequested end its tickets are lost and a replacement starts, unless there were
        too many deaths. After a requested end they are cancelled.
        """
        self._socket.forget(entry.worker)
        self._roster.remove(entry)
        death = Death(entry.worker, entry.where, entry.give_up_reason or exit.how, exit.output)
        if self._closing or (entry.left is not None and not entry.give_up_reason):
            reason = self._closing or f"its worker has ended: {death}"
            self._release(entry, Cause.CANCELLED, reason)
            return
        logger.warning("a worker is gone: %s", death.in_full())
        self._release(entry, Cause.LOST, f"its worker is gone: {death}")
        if not self._was_ready.is_set() and (entry.give_up_reason or not exit.killed):
            self._fail(cannot_start(death))
        elif error := self._crashes.add(death, asyncio.get_running_loop().time()):
            self._fail(error)
        self._replenish(_AGAIN_SECONDS if not entry.ready else 0.0)

    def _give_up(self, entry: WorkerEntry, why: str) -> None:
        """Give up a worker and void its tickets at once, before it has ended."""
        entry.give_up_reason = why
        entry.state = WorkerState.ENDING
        self._release(entry, Cause.LOST, f"its worker is gone: {entry.worker}: {why}")

    def _kill(self, entry: WorkerEntry) -> None:
        if entry.placed is not None:
            entry.left = math.inf
            self._spawn(entry.placed.kill())

    def _ask_to_end(self, entry: WorkerEntry, how: Drain | Stop, within: float) -> None:
        """Ask a worker to clean up and exit. Before its hello there is nothing to clean up."""
        entry.state = WorkerState.ENDING
        entry.left = within if entry.left is None else min(within, entry.left)
        if entry.connected:
            self._send(entry.worker, how)
        elif entry.placed is not None:
            self._kill(entry)
        elif entry.life is not None:
            entry.life.cancel()

    def _release(self, entry: WorkerEntry, cause: Cause, reason: str) -> None:
        for job in entry.jobs.values():
            job.void(cause, reason)
        entry.jobs.clear()
        self._dispatch()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            # Time during which this process was suspended does not count against its workers.
            passed = min(loop.time() - last, 2 * _TICK_SECONDS)
            last = loop.time()
            for entry in self._roster:
                entry.pass_time(passed)
                if entry.left is not None:
                    if entry.left < 0:
                        self._kill(entry)
                elif fault := entry.fault(self._timeouts):
                    self._give_up(entry, fault)
                    self._kill(entry)

    # --- received messages ----------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            received = await self._socket.receive()
            if isinstance(received.message, SandboxReport):
                # Also from a worker that has ended since: the measurements are still valid.
                self.reports.add(received.message)
            elif (entry := self._roster.find(received.worker)) is not None:
                self._handle(entry, received.message)

    def _handle(
        self, entry: WorkerEntry, message: Hello | Ready | Finished | Beat | Failed
    ) -> None:
        match message:
            case Hello():
                entry.connected = True
                starts = entry.state is WorkerState.STARTING
                self._send(entry.worker, Begin(self._spec) if starts else Stop())
            case Ready():
                self._handle_ready(entry, message)
            case Finished(result=result):
                self._finish(entry, result)
            case Beat():
                self._record_beat(entry, message)
            case Failed(reason=reason):
                self._handle_failure(entry, reason)

    def _handle_ready(self, entry: WorkerEntry, ready: Ready) -> None:
        entry.host = ready.host
        entry.ready = True
        if entry.state is not WorkerState.STARTING:
            return
        if ready.rss_mb > self._limit:
            self._give_up_oversized(entry, ready.rss_mb)
            return
        entry.state = WorkerState.READY
        if self._version is not None:
            self._send(entry.worker, NewVersion(self._version))
        if self._paused.paused:
            self._send(entry.worker, self._paused)
        self._was_ready.set()
        self._dispatch()

    def _record_beat(self, entry: WorkerEntry, beat: Beat) -> None:
        entry.record_beat(beat)
        if not beat.full or entry.state is not WorkerState.READY:
            return
        if entry.taken == 0 and beat.rss_mb > self._limit:
            self._give_up_oversized(entry, beat.rss_mb)
            return
        self._log_full(entry, beat.rss_mb)
        entry.state = WorkerState.FULL
        self._replenish()
        self._retire(entry)

    @property
    def _limit(self) -> float:
        return self._spec.memory_mb or math.inf

    def _give_up_oversized(self, entry: WorkerEntry, rss_mb: float) -> None:
        """Give up a worker whose idle memory is above the limit: a replacement's would be, too."""
        why = f"it takes {rss_mb:.0f} MB before its first ticket; raise memory_mb"
        self._give_up(entry, f"{why}, which is {self._spec.memory_mb}")
        self._kill(entry)

    def _log_full(self, entry: WorkerEntry, rss_mb: float) -> None:
        is_young = entry.taken <= self._spec.concurrency
        if rss_mb > self._limit and is_young and not self._warned_of_limit:
            self._warned_of_limit = True
            logger.warning(
                "%s is replaced after %d tickets: it takes %.0f MB, and memory_mb is %d; raise it, "
                "or lower concurrency",
                *(entry.worker, entry.taken, rss_mb, self._limit),
            )
        else:
            logger.info(
                "%s takes no more tickets, with %.0f MB, and is replaced", entry.worker, rss_mb
            )

    def _retire(self, entry: WorkerEntry) -> None:
        """End a full worker without running tickets. Its replacement was started before."""
        if entry.state is WorkerState.FULL and not entry.jobs:
            self._ask_to_end(entry, Stop(), self._timeouts.end_within)

    def _finish(self, entry: WorkerEntry, result: Result) -> None:
        if (job := entry.jobs.pop(result.ticket, None)) is not None:
            entry.finished += 1
            job.resolve(result)
            self._retire(entry)
            self._dispatch()

    def _handle_failure(self, entry: WorkerEntry, reason: str) -> None:
        """Handle a worker's final message. It exits by itself; `wait_ready` fails at once."""
        why = reason.strip().splitlines()[-1] if reason.strip() else "it cannot continue"
        self._give_up(entry, why)
        entry.left = self._timeouts.end_within
        if not self._was_ready.is_set():
            self._fail(cannot_start(Death(entry.worker, entry.where, why, reason)))

    # --- background tasks -----------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._failed.set()
            self._dispatch()

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
