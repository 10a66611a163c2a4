"""A worker: takes tickets from its run, runs them at once on one loop, says what came of each.

It ends when it is told to, when a signal asks it to, or when its run is gone. On each of these
ways its tickets are cancelled first and its place is left, so that nothing stays behind.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import traceback
from contextlib import AsyncExitStack
from typing import assert_never

from plimsoll.core.errors import PlimsollError
from plimsoll.sandboxes.host.temporary import remove_leftovers
from plimsoll.trials.verdicts import Cause, Void
from plimsoll.workers.engines.protocol import Credentials
from plimsoll.workers.messages import (
    Begin,
    Cancel,
    Drain,
    Expect,
    Failed,
    Finished,
    FromWorker,
    Hello,
    NewVersion,
    Paused,
    Ready,
    Run,
    Stop,
    ToWorker,
    TrialRunner,
    WorkerSpec,
)
from plimsoll.workers.worker.connection import WorkerConnection
from plimsoll.workers.worker.heartbeat import Heartbeat, LoopLag
from plimsoll.workers.worker.memory import MemoryTrimmer, find_trim, rss_mb
from plimsoll.workers.worker.running_tickets import Load, RunningTickets
from plimsoll.workers.worker.scratch import scratch

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

_DONE, _CANNOT_START, _RUN_IS_GONE = 0, 1, 3
"""How a worker's process exits."""

_ORPHAN_SECONDS = 30
"""For a worker whose run is gone to end; longer than its heart gives the loop to clean up."""

_STOPPED = Void(Cause.CANCELLED, "the run is being stopped")
_SIGNALLED = Void(Cause.LOST, "its worker was asked to end by a signal")
_ORPHANED = Void(Cause.LOST, "the run is gone")


class Worker:
    """One worker's life. It runs once, in a process of its own."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._name = credentials.invitation.worker
        self._load = Load()
        self._spec = asyncio.Future[WorkerSpec]()
        self._runner: TrialRunner | None = None
        self._tickets: RunningTickets | None = None
        self._living: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._verdict = _STOPPED
        """Of what still runs at its end."""
        self._stopped = False
        self._code = _DONE

    async def run(self) -> int:
        """Live. The answer is how its process should exit."""
        async with WorkerConnection(self._credentials) as line, asyncio.TaskGroup() as group:
            self._living = group.create_task(self._live(line))
            beside = [group.create_task(self._listen(line)), group.create_task(self._watch(line))]
            line.send(Hello())
            try:
                await asyncio.wait([self._living])
            finally:
                for task in beside:
                    task.cancel()
        return self._code

    def terminate(self) -> None:
        """A signal asks it to end: what runs has its grace. The second time it ends at once."""
        self._verdict = _SIGNALLED
        if self._load.leaving or self._tickets is None:
            self._stop(_SIGNALLED)
        else:
            self._drain(self._spec.result().grace_seconds)

    def orphan(self) -> None:
        """Its run is gone: nobody waits for what it does.

        The kernel ends the process if cleaning up does not: a thread or a task that hangs after
        the heart has stopped would keep it for ever.
        """
        self._code = _RUN_IS_GONE
        signal.alarm(_ORPHAN_SECONDS)
        self._stop(_ORPHANED)

    async def _live(self, line: WorkerConnection) -> None:
        spec = await self._spec
        async with AsyncExitStack() as stack:
            pulse = self._start_heart(spec, stack)
            await asyncio.to_thread(remove_leftovers)
            stack.enter_context(scratch(spec.run))
            # Once its place is left: what could not be removed is said, too.
            stack.callback(self._tell_news, line)
            try:
                # Imported here: a worker that is still importing beats already.
                from plimsoll.workers.worker.environment import trial_environment

                runner = await stack.enter_async_context(trial_environment(spec.options))
            except PlimsollError as error:
                self._fail(line, str(error))
                return
            except Exception:  # noqa: BLE001 - the boundary: becomes the worker's last words
                self._fail(line, traceback.format_exc())
                return
            bare = await asyncio.to_thread(_bare_mb)
            # What is alive now stays so: not looking at it again keeps collections, which hold
            # the loop up, short.
            gc.freeze()
            tickets = self._tickets = RunningTickets(
                runner, self._load, lambda m: self._say(line, m)
            )
            stack.push_async_callback(self._leave, tickets)
            self._runner = runner
            pulse.watch(runner.counts)
            line.send(Ready(self._name, socket.gethostname(), os.getpid(), bare))
            # Being stopped is how it ends: its place is left as after any work, not as after an
            # error, and removes what others that were killed left there.
            with contextlib.suppress(asyncio.CancelledError):
                while True:
                    await asyncio.sleep(spec.beat_seconds)
                    self._tell_news(line)

    def _say(self, line: WorkerConnection, message: FromWorker) -> None:
        """Whoever hears the end of a ticket has heard what there was to say of its sandbox."""
        if isinstance(message, Finished):
            self._tell_news(line)
        line.send(message)

    def _tell_news(self, line: WorkerConnection) -> None:
        if self._runner is not None and (news := self._runner.news()) is not None:
            line.send(news)

    def _start_heart(self, spec: WorkerSpec, stack: AsyncExitStack) -> LoopLag:
        pulse = LoopLag()
        stack.callback(pulse.stop)
        loop = asyncio.get_running_loop()
        heart = Heartbeat(
            self._credentials,
            seconds=spec.beat_seconds,
            pulse=pulse,
            upkeep=MemoryTrimmer(find_trim(), every=spec.trim_seconds, limit_mb=spec.memory_mb),
            load=self._load,
            on_broken=lambda: loop.call_soon_threadsafe(self.orphan),
        )
        heart.start()
        stack.push_async_callback(asyncio.to_thread, heart.stop)
        return pulse

    async def _leave(self, tickets: RunningTickets) -> None:
        self._load.leaving = True
        if self._draining is not None:
            self._draining.cancel()
        await tickets.close(self._verdict)

    async def _listen(self, line: WorkerConnection) -> None:
        while True:
            self._hear(await line.receive())
            await asyncio.sleep(0)  # a burst of messages does not hold the loop up

    async def _watch(self, line: WorkerConnection) -> None:
        why = await line.broken()
        logger.warning("%s: %s", self._name, why)
        self.orphan()

    def _hear(self, message: ToWorker) -> None:
        match message:
            case Begin(spec=spec):
                self._spec.set_result(spec)
            case Drain(grace=grace):
                self._drain(grace)
            case Stop():
                self._stop(_STOPPED)
            case _:
                assert self._tickets is not None and self._runner is not None, "it was not ready"
                self._hear_order(message, self._tickets, self._runner)

    def _hear_order(
        self,
        message: Run | Cancel | Expect | NewVersion | Paused,
        tickets: RunningTickets,
        runner: TrialRunner,
    ) -> None:
        match message:
            case Run(order=order):
                tickets.take(order)
            case Cancel(ticket=ticket, reason=reason):
                tickets.cancel(ticket, Void(Cause.CANCELLED, reason))
            case Expect(coming=coming):
                # One that is leaving is given nothing more, whatever was said before it knew.
                runner.expect(() if self._load.leaving else coming)
            case NewVersion(version=version):
                runner.set_version(version)
            case Paused(paused=paused, drains=drains):
                runner.set_paused(paused, drains=drains)
            case _:
                assert_never(message)

    def _drain(self, grace: float) -> None:
        """Take no more, and end when what runs has ended; what takes too long is given up."""
        if self._tickets is None:
            self._stop(self._verdict)
            return
        self._load.leaving = True
        if self._runner is not None:
            self._runner.expect(())
        if self._draining is not None:
            self._draining.cancel()
        self._draining = asyncio.create_task(self._end_within(grace, self._tickets))

    async def _end_within(self, grace: float, tickets: RunningTickets) -> None:
        try:
            async with asyncio.timeout(grace):
                await tickets.wait_empty()
        except TimeoutError:
            tickets.cancel_all(self._verdict)
            await tickets.wait_empty()
        self._stop(self._verdict)

    def _stop(self, verdict: Void) -> None:
        """End now. Leaving cleans up, and is not cut short by being told again."""
        if not self._stopped and self._living is not None:
            self._stopped = True
            self._verdict = verdict
            self._living.cancel()

    def _fail(self, line: WorkerConnection, words: str) -> None:
        self._code = _CANNOT_START
        logger.error("%s cannot start: %s", self._name, words)
        line.send(Failed(words))


def _bare_mb() -> float:
    """What it takes as it is, without what it has freed; 0 where that cannot be told."""
    if (trim := find_trim()) is not None:
        trim()
    try:
        return rss_mb()
    except OSError:
        return 0.0
