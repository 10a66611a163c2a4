"""`RunSession`: the parts that every run has, entered and left in order.

    directory → ledger → controller.json → recovery → workers → scheduler → status.json

A session whose directory is that of an earlier run continues it. `Rollouts`, `plimsoll eval`,
`plimsoll validate` and the integrations with TRL and verl are sessions.
"""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from plimsoll.config.dump import dump_config
from plimsoll.core.errors import PlimsollError
from plimsoll.core.file_systems import file_system_type, is_networked
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.journal.location import Location, find, has_ledger, make
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs import controller_process
from plimsoll.runs.breaker.breaker import Breaker, BreakerMonitor
from plimsoll.runs.evaluation.held_out import HeldOutResult
from plimsoll.runs.files.directory import RunDirectory, write_whole
from plimsoll.runs.files.results import TrialCounts
from plimsoll.runs.files.steps import Step
from plimsoll.runs.plan import Plan
from plimsoll.runs.reporter import Reporter
from plimsoll.runs.rollout_buffer import RolloutBuffer
from plimsoll.runs.scheduling.scheduler import Scheduler
from plimsoll.runs.worker_setup import make_workers
from plimsoll.sandboxes.host.owners import host_name, this_process
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.workers.controller.protocol import Workers

__all__ = ["RunParts", "RunSession"]

_log = logging.getLogger(__name__)
_MESSAGE_SECONDS = 30.0
"""Interval of messages about workers that wait for a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """The parts by which one kind of run differs from another, once its ledger is recovered."""

    buffer: RolloutBuffer
    breaker: Breaker
    order: DataOrder | None = None
    """The order of the training data; None for trial sets only."""
    steps: list[Step] = field(default_factory=list[Step])
    """The committed steps of earlier processes."""
    held_out: list[HeldOutResult] = field(default_factory=list[HeldOutResult])
    """The evaluations of earlier processes."""
    counts: Callable[[], TrialCounts] | None = None
    """Counts the trials of a run without training."""


class RunSession(ABC):
    """A run of this process. A kind of run defines its parts (`_recover`)."""

    directory: RunDirectory
    location: Location
    _is_new = False

    def __init__(
        self,
        plan: Plan,
        *,
        out: Path | None,
        kind: str,
        name: str = "",
        in_process: bool = False,
        resumes: bool = True,
    ) -> None:
        """`kind` is that of `status.json`. `name` begins the name of a new directory; by default,
        the kind does. `in_process`: no worker processes.

        `resumes`: if `out` is the directory of a run, it is continued; otherwise refused.
        """
        self.plan = plan
        self._out = out
        self._kind = kind
        self._name = name or kind
        self._in_process = in_process
        self._resumes = resumes
        self._is_open = False
        self._stack = contextlib.AsyncExitStack()
        self._workers: Workers | None = None
        self._loop: asyncio.Task[None] | None = None

    @abstractmethod
    async def _recover(self) -> RunParts:
        """Bring ledger and plan to where the run continues. Nothing is started yet."""

    def _finish(self) -> None:  # noqa: B027 - only a run that trains has one
        """Write the summary, in a thread, once no trial runs."""

    def _write_settings(self) -> None:
        """Write the files that a resume reads."""
        write_whole(self.directory.config, dump_config(self.plan.config).encode(), lasting=True)

    async def __aenter__(self) -> Self:
        self.open_directory()
        is_held = False
        try:
            async with contextlib.AsyncExitStack() as stack:
                self._ledger = await stack.enter_async_context(
                    Ledger(self.location.folder, self.plan.settings, this_process(), time.time)
                )
                is_held = True
                if self._is_new:
                    self.location.publish()
                await self._begin(stack)
                self._stack = stack.pop_all()
        except BaseException:
            # No trial was started, so there is nothing to resume: the next try is a new run.
            if self._is_new and is_held:
                self.directory.discard(self.location)
            raise
        return self

    async def _begin(self, stack: contextlib.AsyncExitStack) -> None:
        """Start everything. The holder of the ledger's lock is the run's only controller."""
        controller_process.claim(self.directory)
        stack.callback(controller_process.release, self.directory)
        stack.push_async_callback(self.directory.flush)
        if not self._is_new:
            self.directory.mend()
            self._write_settings()
        parts = await self._recover()
        # After recovery: servers may be paused until they have their weights.
        self.plan = await self.plan.probed()
        if not self._in_process:
            # Imported here: a run without worker processes needs none of it.
            from plimsoll.runs.cleanup import reap_at_end

            # After the workers: one that did not end in time was killed, and left its sandboxes.
            stack.push_async_callback(reap_at_end, self.plan.config)
        workers = make_workers(self.plan, self.directory, in_process=self._in_process)
        self._workers = workers
        await stack.enter_async_context(workers)
        workers.set_version(self._ledger.books.version)
        self._control(workers, parts)
        self._status = asyncio.create_task(self._reporter.keep_status())
        stack.push_async_exit(self._end_status)
        await _wait_ready(workers)
        self._loop = self._scheduler.start()
        stack.push_async_exit(self._end)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(exc_type, exc, traceback)

    @property
    def has_begun(self) -> bool:
        """True once workers were ready, so that there is something to resume."""
        return self._loop is not None

    def open_directory(self) -> None:
        """Take the directory of an earlier run, or make a new one."""
        if not self._is_open:
            self._is_new = self._open_directory()
            self._is_open = True

    def _open_directory(self) -> bool:
        ledger_folder = self.plan.config.storage.ledger
        given = self.plan.config.local.home
        home = Home.find(None if given is None else Path(given)).path
        if self._resumes and self._out is not None and has_ledger(self._out):
            self.directory = RunDirectory(self._out)
            controller_process.check_not_elsewhere(self.directory)
            self.location = find(self._out, ledger_folder, home)
            self._warn_of_network()
            return False
        self.directory = RunDirectory.create(self._out, now=datetime.now(), kind=self._name)
        try:
            self.location = make(self.directory.path, ledger_folder, home)
        except BaseException:
            self.directory.discard()
            raise
        # Before the ledger: a directory with a ledger can be resumed, by these files.
        self._write_settings()
        return True

    def _warn_of_network(self) -> None:
        """Warn of a ledger that was moved to a network file system with its run directory."""
        if is_networked(kind := file_system_type(self.location.folder)):
            _log.warning(
                "the ledger %s is on %s, where SQLite's write-ahead log is not safe: look at it "
                "from this host only while the run is alive",
                *(self.location.ledger, kind),
            )

    def _control(self, workers: Workers, parts: RunParts) -> None:
        plan, directory, owner = self.plan, self.directory, this_process()
        number = directory.next_canary()
        monitor = BreakerMonitor(parts.breaker, plan.canaries, plan.tasks, number)
        self._scheduler = Scheduler(
            plan,
            directory,
            self._ledger,
            workers,
            monitor,
            parts.buffer,
            f"{host_name(owner)}:{owner.pid}",
            parts.order,
        )
        self._reporter = Reporter(
            plan,
            directory,
            self._ledger,
            workers,
            monitor,
            self._scheduler,
            parts.steps,
            parts.held_out,
            self.location.description,
            kind=self._kind,
            counts=parts.counts,
        )

    async def _end(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drain the workers, or cancel running trials after an error, and write the summary."""
        del exc_type, traceback
        assert self._loop is not None
        # An error of the loop that no caller has seen yet.
        unseen = self._loop.exception() if exc is None and self._loop.done() else None
        self._stop_for(exc or unseen)
        try:
            grace = self.plan.config.workers.grace_seconds if exc is None else 0.0
            await self._scheduler.drain(grace)
        finally:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        try:
            await asyncio.to_thread(self._finish)
        except PlimsollError as error:
            if exc is None and unseen is None:
                raise
            _log.warning("%s", error)  # never in place of the error that ended the run
        if unseen is not None:
            raise unseen

    def _stop_for(self, error: BaseException | None) -> None:
        """Record the error that ends the run, if it is one for a person."""
        if isinstance(error, PlimsollError):
            self._scheduler.fail(str(error).partition("\n")[0])

    async def _end_status(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del exc_type, traceback
        self._stop_for(exc)
        self._status.cancel()
        await asyncio.gather(self._status, return_exceptions=True)
        await asyncio.to_thread(self._reporter.end_status)


async def _wait_ready(workers: Workers) -> None:
    """Wait for the first worker, and log the reason of a long wait."""
    ready = asyncio.create_task(workers.wait_ready())
    try:
        while not (await asyncio.wait([ready], timeout=_MESSAGE_SECONDS))[0]:
            if workers.waiting:
                _log.warning("%s", workers.waiting)
        await ready
    finally:
        ready.cancel()
