"""Rollouts for a trainer: batches of groups, each used once whatever happens.

    async with plimsoll.Rollouts("run.toml") as rollouts:
        async for batch in rollouts.batches():
            ...
            await rollouts.commit(batch, save)

Rollouts go on while a batch is trained on, on the same event loop: train in a thread.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from plimsoll.config.dump import dump_config
from plimsoll.config.file import Config, load_config
from plimsoll.core.errors import LedgerError, PlimsollError, UsageError
from plimsoll.core.file_systems import file_system_type, is_networked
from plimsoll.core.versions import Version
from plimsoll.ledger.checkpoints import Checkpoint
from plimsoll.ledger.journal import location
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs import controller_process
from plimsoll.runs.batches import Batch
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.monitor import BreakerMonitor
from plimsoll.runs.cleanup import reap_at_end
from plimsoll.runs.directory import RunDirectory, write_whole
from plimsoll.runs.engines import make_supervisor
from plimsoll.runs.evaluation.held_out import HeldOutResult, read_held_out
from plimsoll.runs.plan import Plan
from plimsoll.runs.policies import Served
from plimsoll.runs.recovery import checkpoints_of, restore
from plimsoll.runs.reporter import Reporter
from plimsoll.runs.scheduler import Scheduler
from plimsoll.runs.status import RunSummary, Status, Step
from plimsoll.runs.validation.at_start import ValidationAtStart
from plimsoll.sandboxes.host.owners import host_name, this_process
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.workers.controller.supervisor import Supervisor

__all__ = ["Prepare", "Publish", "Rollouts", "Save"]

_log = logging.getLogger(__name__)

Save = Callable[[Path], None]
"""Writes a checkpoint's files into a folder."""
Prepare = Callable[["Rollouts"], Awaitable[None]]
"""Called once it is known where the run goes on from, and before anything is rolled out."""
Publish = Callable[[Version], Awaitable[None]]
"""Has all that is generated from now on be of a version."""


class Rollouts:
    """A run. Where its directory is that of a run already, it goes on with it.

    `trains`: the caller trains, so that after a crash the run goes back to the last checkpoint,
    or to its start where there is none. Without it every version is as good as the first.

    `urls`, `key` and `model`: who answers for the policy, where the caller serves it itself.
    """

    def __init__(
        self,
        config: Config | Path | str,
        *,
        out: Path | str | None = None,
        trains: bool = True,
        keep_going: bool = False,
        prepare: Prepare | None = None,
        urls: tuple[str, ...] = (),
        key: str | None = None,
        model: str | None = None,
    ) -> None:
        file = None if isinstance(config, Config) else Path(config)
        served = Served(urls, key, model) if urls else None
        self.plan = Plan.make(config if isinstance(config, Config) else load_config(file), served)
        self._kind = "run" if file is None else file.stem
        self._out = None if out is None else Path(out)
        self._trains = trains
        self._keep_going = keep_going
        self._prepare = prepare
        self._stack = contextlib.AsyncExitStack()
        self._validating: ValidationAtStart | None = None
        self._supervisor: Supervisor | None = None
        self._loop: asyncio.Task[None] | None = None
        self._committing: Batch | None = None
        """The batch whose weights may be out: it can only be committed."""
        self._summary: RunSummary | None = None

    async def __aenter__(self) -> Self:
        is_new = self._open_directory()
        is_held = False
        try:
            async with contextlib.AsyncExitStack() as stack:
                self._ledger = await stack.enter_async_context(
                    Ledger(self.location.folder, self.plan.settings, this_process(), time.time)
                )
                is_held = True
                if is_new:
                    self.location.publish()
                await self._begin(stack, is_new)
                self._stack = stack.pop_all()
        except BaseException:
            # Nothing was started, so there is nothing to go on with: the next try is a new run.
            if is_new and is_held:
                self.directory.discard(self.location)
            raise
        return self

    async def _begin(self, stack: contextlib.AsyncExitStack, is_new: bool) -> None:
        """With the ledger held: whoever holds that is the run's only controller."""
        controller_process.claim(self.directory)
        stack.callback(controller_process.release, self.directory)
        stack.push_async_callback(self.directory.flush)
        if not is_new:
            self.directory.mend()
            self._write_config()
        if self.plan.config.run.validates:
            self._validating = ValidationAtStart(self.plan, self.directory)
            self.plan = await self._validating.run()
        self.restored = await restore(self._ledger, self.directory, self.plan, trains=self._trains)
        if self._prepare is not None:
            await self._prepare(self)
        # Not before: servers may be paused until they have their weights.
        self.plan = await self.plan.surveyed()
        # After the workers: one that did not end in time was killed, with its sandboxes.
        stack.push_async_callback(reap_at_end, self.plan.config)
        supervisor = self._supervisor = make_supervisor(self.plan, self.directory)
        await stack.enter_async_context(supervisor)
        supervisor.set_version(self._ledger.books.version)
        self._control(supervisor)
        self._status = asyncio.create_task(self._reporter.keep_status())
        stack.push_async_exit(self._end_status)
        await supervisor.wait_ready()
        self._loop = asyncio.create_task(self._controller.run())
        stack.push_async_exit(self._end)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(exc_type, exc, traceback)

    @property
    def version(self) -> Version:
        """The version that rollouts are generated with now."""
        return self._ledger.books.version

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the checkpoint to go on from; None where the first weights are meant."""
        return self.restored.folder

    async def batches(self) -> AsyncGenerator[Batch]:
        """Batch after batch, each of which is to be committed before the next is asked for."""
        assert self._loop is not None, "enter it first: async with Rollouts(…)"
        while True:
            asked = time.monotonic()
            batch = await self._controller.next_batch(self._loop)
            self._reporter.waited(time.monotonic() - asked)
            if batch is None:
                break
            yield batch

    async def evaluate(self, name: str) -> HeldOutResult | None:
        """Try every held-out task as often as [evaluation] says, with the version of now.

        Before the first batch, between steps while rollouts go on, or after the last step.
        None where the run is stopped before it is over. `name` is for people; one that comes
        again is another evaluation.
        """
        assert self._loop is not None, "enter it first: async with Rollouts(…)"
        if not self.plan.held_out.tasks:
            raise UsageError("the config names no held-out tasks: see [evaluation] tasks")
        measured = await self._controller.evaluate(name, self._loop)
        if measured is not None:
            await self._reporter.evaluated(measured)
        return measured

    @property
    def steps(self) -> list[Step]:
        """The steps that were committed, in earlier lives of the run too."""
        return list(self._reporter.steps)

    @property
    def held_out(self) -> list[HeldOutResult]:
        """The evaluations of the run, in earlier lives of it too, the first one first."""
        return list(self._reporter.held_out)

    @property
    def doing(self) -> str:
        """What goes on before training, or beside it; empty where nothing does."""
        if self._loop is not None:
            return self._controller.doing
        if self._supervisor is not None:
            return self._supervisor.waiting or "starting workers"
        return "" if self._validating is None else self._validating.doing

    async def commit(
        self,
        batch: Batch,
        checkpoint: Save | None = None,
        *,
        publish: Publish | None = None,
        skipped: str = "",
    ) -> Version:
        """The step is done; the version that it made.

        `checkpoint` writes the weights into a folder, in a thread. The step counts when they
        are on the disk; one that is committed without is undone by a crash. `publish` comes
        between: where it raises nothing is committed. `skipped` says why the step changed
        nothing, where that is so.
        """
        self._check_current(batch)
        if checkpoint is not None and not self._trains:
            raise UsageError("a run that trains nothing has no weights to keep: trains=False")
        self._committing = batch
        # Its line first: one of a step that is not committed is known by its number.
        await self._reporter.step(batch, self._next_version, skipped)
        version = self._next_version
        name = "" if checkpoint is None else (await self._save(checkpoint, version)).name
        if publish is not None:
            await publish(version)
        return await self._controller.commit(name)

    @contextlib.contextmanager
    def paused(self, *, drains: bool = False) -> Generator[None]:
        """Say that the policy is paused for new weights, for as long as this is entered.

        The time does not count towards that of agents and stragglers. `drains`: the policy still
        answers the requests that it was sent before.
        """
        if self._loop is None:
            yield  # nothing runs yet
            return
        self._controller.set_paused(True, drains=drains)
        try:
            yield
        finally:
            self._controller.set_paused(False)

    async def reject(self, batch: Batch, reasons: Mapping[str, str]) -> None:
        """The batch cannot be trained on: a trajectory of it is gone, say. Ask for another.

        `reasons` names the groups that are at fault, by `BatchGroup.id`: they are void, and
        their prompts are rolled out again. The others wait for one of the next batches.
        """
        self._check_current(batch)
        if batch is self._committing:
            raise LedgerError(
                f"the batch of step {batch.step} cannot be rejected: its weights may be served "
                "already. End the run, and go on with it"
            )
        if not reasons or not reasons.keys() <= {group.id for group in batch.groups}:
            raise UsageError("a batch is rejected by the names of groups that it has")
        await self._controller.reject(reasons)

    def _check_current(self, batch: Batch) -> None:
        """Whether it is the one under way: each is committed once, or rejected."""
        if batch.version != self.version:
            raise LedgerError(
                f"the batch is of version {batch.version}, and the run is at {self.version}: "
                "each is committed once"
            )
        under_way = {group.id for group in self._ledger.books.training}
        if {group.id for group in batch.groups} != under_way:
            raise LedgerError(
                f"the batch for step {batch.step} is not under way: it was rejected before"
            )

    async def save(self, checkpoint: Save, version: Version) -> None:
        """Keep the weights of the version of now, or of the one that the batch under way makes.

        For a trainer that ends between two checkpoints.
        """
        ahead = self._ledger.books.is_training and version == self._next_version
        if version != self.version and not ahead:
            raise LedgerError(f"the run is at version {self.version}: {version} cannot be kept")
        await self._save(checkpoint, version)

    def stop(self, why: str = "it was stopped") -> bool:
        """Start nothing more, and let `batches` end. False where it has not begun."""
        if self._loop is None:
            return False
        self._controller.stop(why)
        return True

    @property
    def has_begun(self) -> bool:
        """Whether workers were ready, so that there is something to go on with."""
        return self._loop is not None

    @property
    def is_over(self) -> bool:
        """Whether it has come to an end in order, and there is a summary."""
        return self._summary is not None

    def status(self) -> Status:
        return self._reporter.status()

    @property
    def summary(self) -> RunSummary:
        """The whole run, after its end."""
        assert self._summary is not None, "the run is not over"
        return self._summary

    def _open_directory(self) -> bool:
        """Take the run's own directory, or make one; whether it is new."""
        wanted = self.plan.config.storage.ledger
        given = self.plan.config.local.home
        home = Home.find(None if given is None else Path(given)).path
        if self._out is not None and location.has_ledger(self._out):
            self.directory = RunDirectory(self._out)
            controller_process.check_not_elsewhere(self.directory)
            self.location = location.find(self._out, wanted, home)
            self._warn_of_network()
            return False
        self.directory = RunDirectory.create(self._out, now=datetime.now(), kind=self._kind)
        try:
            self.location = location.make(self.directory.path, wanted, home)
        except BaseException:
            self.directory.discard()
            raise
        # Before the ledger: what has one is a run, and can be resumed by its own config.
        self._write_config()
        return True

    def _warn_of_network(self) -> None:
        """A ledger that was brought to a network file system with its run directory."""
        if is_networked(kind := file_system_type(self.location.folder)):
            _log.warning(
                "the ledger %s is on %s, where SQLite's write-ahead log is not safe: look at it "
                "from this host only while the run is alive",
                *(self.location.ledger, kind),
            )

    def _write_config(self) -> None:
        write_whole(self.directory.config, dump_config(self.plan.config).encode(), lasting=True)

    def _control(self, supervisor: Supervisor) -> None:
        """Put together what drives the run and what tells of it."""
        plan, directory, owner = self.plan, self.directory, this_process()
        breaker = Breaker(plan.watched(stops=not self._keep_going))
        watching = BreakerMonitor(breaker, plan.canaries, plan.tasks, directory.next_canary())
        self._controller = Scheduler(
            plan,
            directory,
            self._ledger,
            supervisor,
            watching,
            self.restored.kept,
            f"{host_name(owner)}:{owner.pid}",
        )
        self._reporter = Reporter(
            plan,
            directory,
            self._ledger,
            supervisor,
            watching,
            self._controller,
            self.restored.steps,
            read_held_out(directory.held_out, self._ledger.books.lineages, self.version),
            self.location.said,
        )

    @property
    def _next_version(self) -> Version:
        return Version(self.version.lineage, self.version.number + 1)

    async def _save(self, checkpoint: Save, version: Version) -> Checkpoint:
        return await asyncio.to_thread(
            checkpoints_of(self.directory, self.plan).write,
            version,
            self._ledger.position,
            checkpoint,
            self._ledger.books.lineages,
        )

    async def _end(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let what runs come to its end, or cut it short where something went wrong."""
        del exc_type, traceback
        assert self._loop is not None
        # Where nobody has asked for a batch since, nobody was told what ended the loop.
        untold = self._loop.exception() if exc is None and self._loop.done() else None
        self._stop_for(exc or untold)
        try:
            grace = self.plan.config.workers.grace_seconds if exc is None else 0.0
            await self._controller.drain(grace)
        finally:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        self._summary = await asyncio.to_thread(self._reporter.summary)
        try:
            await asyncio.to_thread(self.directory.finish, self._summary)
        except PlimsollError as error:
            if exc is None and untold is None:
                raise
            _log.warning("%s", error)  # never in the place of what ended the run
        if untold is not None:
            raise untold

    def _stop_for(self, error: BaseException | None) -> None:
        """The run is over for this reason, if it is one for a person."""
        if isinstance(error, PlimsollError):
            self._controller.fail(str(error).partition("\n")[0])

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
