"""A worker: runs tickets of its run concurrently on one event loop and reports each result.

It ends on request, on a signal, or when its run is gone. In each case it first cancels its tickets
and closes its environment, so that nothing stays behind.
"""

import asyncio
import contextlib
import gc
import logging
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
    WorkerSpec,
)
from plimsoll.workers.worker.connection import WorkerConnection
from plimsoll.workers.worker.heartbeat import Heartbeat, LoopLag
from plimsoll.workers.worker.memory import MemoryTrimmer, find_trim, rss_mb
from plimsoll.workers.worker.running_tickets import Load, RunningTickets, TrialRunner
from plimsoll.workers.worker.scratch import scratch

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

_DONE, _CANNOT_START, _RUN_IS_GONE = 0, 1, 3
"""Exit codes of a worker process."""

_ORPHAN_SECONDS = 30
"""Time to exit after the run is gone; longer than the heartbeat thread gives the loop."""

_STOPPED = Void(Cause.CANCELLED, "the run is being stopped")
_SIGNALLED = Void(Cause.LOST, "its worker was asked to end by a signal")
_ORPHANED = Void(Cause.LOST, "the run is gone")


class Worker:
    """A worker. It runs once, in a process of its own."""

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
        """The verdict of tickets that still run at its end."""
        self._stopped = False
        self._code = _DONE

    async def run(self) -> int:
        """Run until the end. Returns the exit code."""
        async with WorkerConnection(self._credentials) as connection, asyncio.TaskGroup() as group:
            self._living = group.create_task(self._live(connection))
            beside = [
                group.create_task(self._listen(connection)),
                group.create_task(self._watch(connection)),
            ]
            connection.send(Hello())
            try:
                await asyncio.wait([self._living])
            finally:
                for task in beside:
                    task.cancel()
        return self._code

    def terminate(self) -> None:
        """Handle a signal: drain within the grace period. A second signal stops at once."""
        self._verdict = _SIGNALLED
        if self._load.leaving or self._tickets is None:
            self._stop(_SIGNALLED)
        else:
            self._drain(self._spec.result().grace_seconds)

    def orphan(self) -> None:
        """Stop, since the run is gone and no process waits for results.

        SIGALRM ends the process if cleaning up does not: a thread or a task that hangs after the
        heartbeat has stopped would keep it alive forever.
        """
        self._code = _RUN_IS_GONE
        signal.alarm(_ORPHAN_SECONDS)
        self._stop(_ORPHANED)

    async def _live(self, connection: WorkerConnection) -> None:
        spec = await self._spec
        async with AsyncExitStack() as stack:
            loop_lag = self._start_heartbeat(spec, stack)
            await asyncio.to_thread(remove_leftovers)
            stack.enter_context(scratch(spec.run))
            # After the environment is closed, to report sandboxes that could not be removed.
            stack.callback(self._send_report, connection)
            try:
                # Imported here: heartbeats are already sent during the import.
                from plimsoll.workers.worker.environment import trial_environment

                runner = await stack.enter_async_context(trial_environment(spec.options))
            except PlimsollError as error:
                self._fail(connection, str(error))
                return
            except Exception:  # noqa: BLE001 - the boundary: becomes the worker's last message
                self._fail(connection, traceback.format_exc())
                return
            bare = await asyncio.to_thread(_bare_mb)
            # Live objects stay alive: excluding them from garbage collection keeps collections
            # short, which block the loop.
            gc.freeze()
            tickets = self._tickets = RunningTickets(
                runner, self._load, lambda m: self._send(connection, m)
            )
            stack.push_async_callback(self._leave, tickets)
            self._runner = runner
            loop_lag.watch(runner.counts)
            connection.send(Ready(socket.gethostname(), bare))
            # Cancellation is the normal end: the environment is closed as after normal work, not as
            # after an error, and removes the leftovers of killed workers.
            with contextlib.suppress(asyncio.CancelledError):
                while True:
                    await asyncio.sleep(spec.beat_seconds)
                    self._send_report(connection)

    def _send(self, connection: WorkerConnection, message: FromWorker) -> None:
        """Send a message; before the result of a ticket, send the report of its sandbox."""
        if isinstance(message, Finished):
            self._send_report(connection)
        connection.send(message)

    def _send_report(self, connection: WorkerConnection) -> None:
        if self._runner is not None and (report := self._runner.take_report()) is not None:
            connection.send(report)

    def _start_heartbeat(self, spec: WorkerSpec, stack: AsyncExitStack) -> LoopLag:
        loop_lag = LoopLag()
        stack.callback(loop_lag.stop)
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(
            self._credentials,
            seconds=spec.beat_seconds,
            loop_lag=loop_lag,
            trimmer=MemoryTrimmer(find_trim(), every=spec.trim_seconds, limit_mb=spec.memory_mb),
            load=self._load,
            on_broken=lambda: loop.call_soon_threadsafe(self.orphan),
        )
        heartbeat.start()
        stack.push_async_callback(asyncio.to_thread, heartbeat.stop)
        return loop_lag

    async def _leave(self, tickets: RunningTickets) -> None:
        self._load.leaving = True
        if self._draining is not None:
            self._draining.cancel()
        await tickets.close(self._verdict)

    async def _listen(self, connection: WorkerConnection) -> None:
        while True:
            self._handle(await connection.receive())
            await asyncio.sleep(0)  # a burst of messages does not block the loop

    async def _watch(self, connection: WorkerConnection) -> None:
        why = await connection.broken()
        logger.warning("%s: %s", self._name, why)
        self.orphan()

    def _handle(self, message: ToWorker) -> None:
        match message:
            case Begin(spec=spec):
                self._spec.set_result(spec)
            case Drain(grace=grace):
                self._drain(grace)
            case Stop():
                self._stop(_STOPPED)
            case _:
                assert self._tickets is not None and self._runner is not None, "it was not ready"
                self._handle_order(message, self._tickets, self._runner)

    def _handle_order(
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
            case Expect(kinds=kinds):
                # A worker that drains gets no more orders, even if some were announced before.
                runner.expect(() if self._load.leaving else kinds)
            case NewVersion(version=version):
                runner.set_version(version)
            case Paused(paused=paused, drains=drains):
                runner.set_paused(paused, drains=drains)
            case _:
                assert_never(message)

    def _drain(self, grace: float) -> None:
        """Exit when the running tickets end; cancel them after `grace` seconds. Takes no more."""
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
        """Stop now. A repeated call does not interrupt the cleaning up."""
        if not self._stopped and self._living is not None:
            self._stopped = True
            self._verdict = verdict
            self._living.cancel()

    def _fail(self, connection: WorkerConnection, reason: str) -> None:
        self._code = _CANNOT_START
        logger.error("%s cannot start: %s", self._name, reason)
        connection.send(Failed(reason))


def _bare_mb() -> float:
    """The memory of this process in MB after a trim; 0 if it cannot be read."""
    if (trim := find_trim()) is not None:
        trim()
    try:
        return rss_mb()
    except OSError:
        return 0.0
