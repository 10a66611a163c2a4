"""The workers of a run: started, monitored, ended and replaced.

A worker that is full, ending or not yet ready gets no tickets. A worker that dies, falls silent or
hangs loses its tickets at once and is replaced. Leaving the fleet leaves no worker behind.
"""

import asyncio
import collections
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Never, Self, TypeVar

from plimsoll.core.errors import WorkerError
from plimsoll.core.versions import Version
from plimsoll.trials.verdicts import Cause
from plimsoll.workers.channel import ControllerSocket
from plimsoll.workers.controller.protocol import SandboxReports
from plimsoll.workers.controller.roster import (
    Job,
    Member,
    Patience,
    Phase,
    Roster,
)
from plimsoll.workers.engines.protocol import Engine, Exit
from plimsoll.workers.messages import (
    Beat,
    Begin,
    Drain,
    Expect,
    Failed,
    Finished,
    FromWorker,
    Hello,
    Kind,
    NewVersion,
    Paused,
    Ready,
    Result,
    Run,
    SandboxReport,
    Stop,
    ToWorker,
    WorkerSpec,
)

__all__ = ["Fleet", "SupervisorOptions"]


@dataclass(frozen=True, slots=True)
class Death:
    """The unrequested end of a worker."""

    worker: str
    where: str
    how: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.worker} ({self.where}): {self.how}"

    def in_full(self) -> str:
        """The death with the worker's last output, for diagnosis."""
        if not self.output:
            return f"{self}. It left no output."
        return f"{self}. Its last output:\n{_indented(self.output)}"


class Crashes:
    """Recent deaths. Single dead workers are replaced; a crash loop stops the run."""

    def __init__(self, deaths: int, seconds: float) -> None:
        self._limit = deaths
        self._seconds = seconds
        self._times = collections.deque[float](maxlen=deaths)

    def add(self, death: Death, now: float) -> WorkerError | None:
        """Count a death. Returns the error if the limit is reached."""
        self._times.append(now)
        over = now - self._times[0]
        if len(self._times) < self._limit or over > self._seconds:
            return None
        return WorkerError(
            f"workers die repeatedly: {self._limit} deaths in {over:.0f} s. "
            f"The last one is {death.in_full()}\n"
            "The run stops: fix the cause, then resume it."
        )


def cannot_start(death: Death) -> WorkerError:
    """The error for a worker that ended before any worker was ready."""
    return WorkerError(f"a worker cannot start: {death.in_full()}")


def _indented(output: str) -> str:
    return "\n".join(f"  {line}" for line in output.splitlines())


logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_TICK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
"""Delay before the replacement of a worker that never became ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """Time limits for workers, and the number of deaths that stops a run."""

    patience: Patience = field(default_factory=Patience)
    crash_deaths: int = 5
    """Deaths per worker of the run, within `crash_seconds`, that stop it."""
    crash_seconds: float = 300.0


class Fleet:
    """Keeps `number` workers that take tickets. Enters and leaves its engine."""

    def __init__(
        self,
        engine: Engine,
        spec: WorkerSpec,
        number: int,
        options: SupervisorOptions,
        on_room: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._number = number
        self._patience = options.patience
        self._crashes = Crashes(options.crash_deaths * number, options.crash_seconds)
        self._on_room = on_room
        self._version: Version | None = None
        self._paused = Paused(False)
        self._named = 0
        self._warned_of_limit = False
        self._failed = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stack = contextlib.AsyncExitStack()
        self.reports = SandboxReports()
        self.roster = Roster(spec.concurrency)
        self.answered = asyncio.Event()
        """Set once a worker has been ready."""
        self.failure: BaseException | None = None
        """The reason why workers cannot be kept alive."""
        self.closing = ""
        """The reason why no more workers are started; empty while they are."""

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._engine)
            self._board = await stack.enter_async_context(ControllerSocket(self._engine.host))
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
            await self.end_all("the run was stopped", Stop(), self._patience.end_within)
        finally:
            # If the wait was interrupted, the engine kills the remaining workers.
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stack.aclose()

    @property
    def waiting(self) -> str:
        """A message about workers that have no host yet; empty if there are none.

        The part that changes all the time, the waiting time, comes last, after a dot.
        """
        waits = [m.waited for m in self.roster if m.is_waiting]
        return f"{self._engine.describe_wait(len(waits))} · {max(waits):.0f} s" if waits else ""

    def give(self, job: Job) -> bool:
        """Give a ticket to the least loaded worker; False if none has a free slot."""
        if (member := self.roster.least_busy(job.order.kind)) is None:
            return False
        member.give(job)
        self.send(member.worker, Run(job.order))
        return True

    def expect(self, kinds: Iterable[Kind]) -> None:
        """Announce the next orders, in order, to the workers that take tickets."""
        for worker, share in self.roster.expect(kinds).items():
            self.send(worker, Expect(share))

    def send(self, worker: str, message: ToWorker) -> None:
        self._board.send(worker, message)

    def send_all(self, message: ToWorker) -> None:
        for member in self.roster:
            if member.ready:
                self.send(member.worker, message)

    def set_version(self, version: Version) -> None:
        self._version = version
        self.send_all(NewVersion(version))

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        self._paused = Paused(paused, drains)
        self.send_all(self._paused)

    async def end_all(self, why: str, how: Drain | Stop, within: float) -> None:
        """Start no more workers, ask all to end, and wait for them; late ones are killed."""
        self.closing = self.closing or why
        for member in self.roster:
            self._ask_to_end(member, how, within)
        self._on_room()
        await self._all_ended.wait()

    async def failed(self) -> Never:
        await self._failed.wait()
        raise self.failure_again()

    def failure_again(self) -> BaseException:
        """The failure for another waiter: an error raised twice would collect both tracebacks."""
        assert self.failure is not None
        if isinstance(self.failure, WorkerError):
            return WorkerError(*self.failure.args)
        return self.failure

    # --- lifecycle of a worker ------------------------------------------------------------

    def _replenish(self, after: float = 0.0) -> None:
        if self.closing or self.failure is not None:
            return
        for _ in range(self._number - self.roster.active):
            self._named += 1
            member = Member(f"worker-{self._named}")
            self.roster.add(member)
            self._all_ended.clear()
            member.life = self._spawn(self._run_worker(member, after))
            # A callback, not part of the task: a task cancelled before its first step never runs.
            member.life.add_done_callback(lambda life, who=member: self._on_end(who, life))

    async def _run_worker(self, member: Member, after: float) -> Exit:
        """Start a worker and wait for its end."""
        await asyncio.sleep(after)
        member.waited = 0.0
        opening = self._board.open(member.worker, self._spec.environment)
        try:
            member.placed = await self._engine.start(opening)
            return await member.placed.ended()
        except WorkerError as error:
            return Exit(str(error))

    def _on_end(self, member: Member, life: asyncio.Task[Exit]) -> None:
        known = not life.cancelled() and life.exception() is None
        self._remove(member, life.result() if known else Exit("it was given up", killed=True))
        if not self.roster:
            self._all_ended.set()

    def _remove(self, member: Member, exit: Exit) -> None:
        """Remove a worker that has ended.

        After an unrequested end its tickets are lost and a replacement starts, unless there were
        too many deaths. After a requested end they are cancelled.
        """
        self._board.forget(member.worker)
        self.roster.remove(member)
        death = Death(member.worker, member.where, member.give_up_reason or exit.how, exit.output)
        if self.closing or (member.left is not None and not member.give_up_reason):
            reason = self.closing or f"its worker has ended: {death}"
            self._release(member, Cause.CANCELLED, reason)
            return
        logger.warning("a worker is gone: %s", death.in_full())
        self._release(member, Cause.LOST, f"its worker is gone: {death}")
        if not self.answered.is_set() and (member.give_up_reason or not exit.killed):
            self._fail(cannot_start(death))
        elif error := self._crashes.add(death, asyncio.get_running_loop().time()):
            self._fail(error)
        self._replenish(_AGAIN_SECONDS if not member.ready else 0.0)

    def _lose(self, member: Member, why: str) -> None:
        """Give up a worker and void its tickets at once, before it has ended."""
        member.give_up_reason = why
        member.phase = Phase.ENDING
        self._release(member, Cause.LOST, f"its worker is gone: {member.worker}: {why}")

    def _kill(self, member: Member) -> None:
        if member.placed is not None:
            member.left = math.inf
            self._spawn(member.placed.kill())

    def _ask_to_end(self, member: Member, how: Drain | Stop, within: float) -> None:
        """Ask a worker to clean up and exit. Before its hello there is nothing to clean up."""
        member.phase = Phase.ENDING
        member.left = within if member.left is None else min(within, member.left)
        if member.connected:
            self.send(member.worker, how)
        elif member.placed is not None:
            self._kill(member)
        elif member.life is not None:
            member.life.cancel()

    def _release(self, member: Member, cause: Cause, reason: str) -> None:
        for job in member.jobs.values():
            job.void(cause, reason)
        member.jobs.clear()
        self._on_room()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            # Time during which this process was suspended does not count against its workers.
            passed = min(loop.time() - last, 2 * _TICK_SECONDS)
            last = loop.time()
            for member in self.roster:
                member.pass_time(passed)
                if member.left is not None:
                    if member.left < 0:
                        self._kill(member)
                elif fault := member.fault(self._patience):
                    self._lose(member, fault)
                    self._kill(member)

    # --- received messages ----------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            received = await self._board.receive()
            if isinstance(received.message, SandboxReport):
                # Also from a worker that has ended since: the measurements are still valid.
                self.reports.add(received.message)
            elif (member := self.roster.find(received.worker)) is not None:
                self._handle(member, received.message)

    def _handle(self, member: Member, message: FromWorker) -> None:
        match message:
            case Hello():
                member.connected = True
                starts = member.phase is Phase.STARTING
                self.send(member.worker, Begin(self._spec) if starts else Stop())
            case Ready():
                self._handle_ready(member, message)
            case Finished(result=result):
                self._finish(member, result)
            case Beat():
                self._record_beat(member, message)
            case Failed(reason=reason):
                self._handle_failure(member, reason)
            case SandboxReport():
                pass

    def _handle_ready(self, member: Member, ready: Ready) -> None:
        member.host = ready.host
        member.ready = True
        if member.phase is not Phase.STARTING:
            return
        if ready.rss_mb > self._limit:
            self._lose_bare(member, ready.rss_mb)
            return
        member.phase = Phase.READY
        if self._version is not None:
            self.send(member.worker, NewVersion(self._version))
        if self._paused.paused:
            self.send(member.worker, self._paused)
        self.answered.set()
        self._on_room()

    def _record_beat(self, member: Member, beat: Beat) -> None:
        member.record_beat(beat)
        if not beat.full or member.phase is not Phase.READY:
            return
        if member.taken == 0 and beat.rss_mb > self._limit:
            self._lose_bare(member, beat.rss_mb)
            return
        self._log_full(member, beat.rss_mb)
        member.phase = Phase.FULL
        self._replenish()
        self._retire(member)

    @property
    def _limit(self) -> float:
        return self._spec.memory_mb or math.inf

    def _lose_bare(self, member: Member, rss_mb: float) -> None:
        """Give up a worker whose idle memory is above the limit: a replacement's would be, too."""
        why = f"it takes {rss_mb:.0f} MB before its first ticket; raise memory_mb"
        self._lose(member, f"{why}, which is {self._spec.memory_mb}")
        self._kill(member)

    def _log_full(self, member: Member, rss_mb: float) -> None:
        is_young = member.taken <= self._spec.concurrency
        if rss_mb > self._limit and is_young and not self._warned_of_limit:
            self._warned_of_limit = True
            logger.warning(
                "%s is replaced after %d tickets: it takes %.0f MB, and memory_mb is %d; raise it, "
                "or lower concurrency",
                *(member.worker, member.taken, rss_mb, self._limit),
            )
        else:
            logger.info(
                "%s takes no more tickets, with %.0f MB, and is replaced", member.worker, rss_mb
            )

    def _retire(self, member: Member) -> None:
        """End a full worker without running tickets. Its replacement was started before."""
        if member.phase is Phase.FULL and not member.jobs:
            self._ask_to_end(member, Stop(), self._patience.end_within)

    def _finish(self, member: Member, result: Result) -> None:
        if (job := member.jobs.pop(result.ticket, None)) is not None:
            member.finished += 1
            job.resolve(result)
            self._retire(member)
            self._on_room()

    def _handle_failure(self, member: Member, reason: str) -> None:
        """Handle a worker's final message. It exits by itself; `wait_ready` fails at once."""
        why = reason.strip().splitlines()[-1] if reason.strip() else "it cannot continue"
        self._lose(member, why)
        member.left = self._patience.end_within
        if not self.answered.is_set():
            self._fail(cannot_start(Death(member.worker, member.where, why, reason)))

    # --- background tasks -----------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self._failed.set()
            self._on_room()

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
