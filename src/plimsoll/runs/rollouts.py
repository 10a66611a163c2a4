"""Rollouts for a trainer: batches of groups, each consumed exactly once.

    async with plimsoll.Rollouts("run.toml") as rollouts:
        async for batch in rollouts.batches():
            ...
            await rollouts.commit(batch, save)

Rollouts continue during training, on the same event loop: train in a thread.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from pathlib import Path

from plimsoll.config.file import Config, load_config
from plimsoll.core.errors import LedgerError, UsageError
from plimsoll.core.stopwatch import seconds_since
from plimsoll.core.versions import Version
from plimsoll.ledger.checkpoints import Checkpoint
from plimsoll.runs.batches import Batch
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.evaluation.held_out import (
    HeldOutResult,
    held_out_result,
    held_out_set,
    read_held_out,
)
from plimsoll.runs.files.status import RunSummary, Status
from plimsoll.runs.files.steps import Step, TrainerFigures
from plimsoll.runs.plan import Plan
from plimsoll.runs.recovery import checkpoints_of, restore
from plimsoll.runs.session import RunParts, RunSession
from plimsoll.runs.validation.at_start import ValidationAtStart
from plimsoll.workers.worker.policy_service import ServedPolicy

__all__ = ["Prepare", "Publish", "Rollouts", "Save"]

_log = logging.getLogger(__name__)

Save = Callable[[Path], None]
"""Writes a checkpoint's files into a folder."""
Prepare = Callable[["Rollouts"], Awaitable[None]]
"""Called when the version to continue from is known, before anything is rolled out."""
Publish = Callable[[Version], Awaitable[None]]
"""Makes the policy generate with a version from now on."""


class Rollouts(RunSession):
    """A run. If its directory is that of an earlier run, it continues that run.

    `trains`: the caller trains, so after a crash the run returns to the last checkpoint, or to its
    start without one. Otherwise all versions are equivalent, and no step is undone.

    `name` begins the name of a new directory if `out` is None; by default it is the name of the
    config file. `urls`, `key` and `model`: the policy's servers, if the caller serves the policy
    itself.
    """

    def __init__(
        self,
        config: Config | Path | str,
        *,
        out: Path | str | None = None,
        name: str | None = None,
        trains: bool = True,
        keep_going: bool = False,
        prepare: Prepare | None = None,
        urls: tuple[str, ...] = (),
        key: str | None = None,
        model: str | None = None,
    ) -> None:
        if not isinstance(config, Config):
            name = name or Path(config).stem
            config = load_config(Path(config))
        served = ServedPolicy(urls, key, model) if urls else None
        plan = Plan.make(config, served)
        super().__init__(plan, out=None if out is None else Path(out), kind="run", name=name or "")
        self._trains = trains
        self._keep_going = keep_going
        self._prepare = prepare
        self._validation: ValidationAtStart | None = None
        self._committing: Batch | None = None
        """The batch whose weights may be published: it can only be committed."""
        self._summary: RunSummary | None = None

    async def _recover(self) -> RunParts:
        if self.plan.config.run.validates:
            self._validation = ValidationAtStart(self.plan, self.directory)
            self.plan = await self._validation.run()
        self.restored = await restore(self._ledger, self.directory, self.plan, trains=self._trains)
        if self._prepare is not None:
            await self._prepare(self)
        lineages = self._ledger.books.lineages
        return RunParts(
            buffer=self.restored.buffer,
            breaker=Breaker(self.plan.breaker_limits(stops=not self._keep_going)),
            order=self.plan.order(),
            steps=self.restored.steps,
            held_out=read_held_out(self.directory.held_out, lineages, self.version),
        )

    def _finish(self) -> None:
        self._summary = self._reporter.summary()
        self.directory.finish(self._summary)

    @property
    def version(self) -> Version:
        """The version that rollouts are generated with now."""
        return self._ledger.books.version

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the checkpoint to continue from; None for the initial weights."""
        return self.restored.folder

    async def batches(self) -> AsyncGenerator[Batch]:
        """Yield batches. Commit or reject each before asking for the next."""
        assert self._loop is not None, "enter it first: async with Rollouts(…)"
        while True:
            asked = time.monotonic()
            batch = await self._scheduler.next_batch()
            self._reporter.waited(time.monotonic() - asked)
            if batch is None:
                break
            yield batch

    async def evaluate(self, name: str) -> HeldOutResult | None:
        """Run the held-out tasks with the current version, with the attempts of [evaluation].

        Before the first batch, between steps while rollouts continue, or after the last step. None
        if the run is stopped first. `name` is for display; a repeated name is a new evaluation.
        """
        assert self._loop is not None, "enter it first: async with Rollouts(…)"
        if not self.plan.held_out.tasks:
            raise UsageError("the config names no held-out tasks: see [evaluation] tasks")
        tasks = [task for _, task in sorted(self.plan.held_out.admitted.items())]
        attempts = self.plan.config.evaluation.attempts
        sets, at, began = self._scheduler.sets, self.version, time.monotonic()
        trials = held_out_set(sets.new_name(name), name, tasks, attempts, self.directory)
        if not await self._scheduler.run_set(trials):
            return None
        measured = held_out_result(trials, name, at, time.monotonic() - began)
        await self._reporter.evaluated(measured)
        return measured

    @property
    def steps(self) -> list[Step]:
        """The committed steps, including those of earlier processes of the run."""
        return list(self._reporter.steps)

    @property
    def held_out(self) -> list[HeldOutResult]:
        """The evaluations of the run, including those of earlier processes, in order."""
        return list(self._reporter.held_out)

    @property
    def doing(self) -> str:
        """The current activity before or beside training, for display; empty if there is none."""
        if self._loop is not None:
            return self._scheduler.doing
        if self._workers is not None:
            return self._workers.waiting or "starting workers"
        return "" if self._validation is None else self._validation.doing

    async def commit(
        self,
        batch: Batch,
        checkpoint: Save | None = None,
        *,
        publish: Publish | None = None,
        skipped: str = "",
        figures: TrainerFigures | None = None,
    ) -> Version:
        """Commit the step; returns the version that it made.

        `checkpoint` writes the weights into a folder, in a thread. They are on the disk before the
        step is committed; a crash undoes a step without a checkpoint. `publish` runs between the
        two: if it raises, nothing is committed. `skipped`: the reason, if the step changed no
        weights. `figures` are for the step's line of `steps.jsonl`.
        """
        self._check_current(batch)
        if checkpoint is not None and not self._trains:
            raise UsageError(
                "checkpoint= needs trains=True: without training there are no weights to save"
            )
        self._committing = batch
        version = self._next_version
        line = functools.partial(self._reporter.step, batch, version, skipped, figures)
        # The line first: a line of an uncommitted step is recognized by its number.
        await line()
        name, saved, published, mark = "", None, None, time.perf_counter()
        if checkpoint is not None:
            name = (await self._save(checkpoint, version)).name
            saved = seconds_since(mark)
            mark = time.perf_counter()
        if publish is not None:
            await publish(version)
            published = seconds_since(mark)
        await self._scheduler.commit(name)
        await line(checkpoint=saved, publish=published, is_complete=True)
        return version

    @contextlib.contextmanager
    def paused(self, *, drains: bool = False) -> Generator[None]:
        """Mark the policy as paused for new weights, while the context is active.

        The time does not count towards the limits of agents and stragglers. `drains`: the policy
        still answers the requests in flight.
        """
        if self._loop is None:
            yield  # nothing runs yet
            return
        self._scheduler.set_paused(True, drains=drains)
        try:
            yield
        finally:
            self._scheduler.set_paused(False)

    async def reject(self, batch: Batch, reasons: Mapping[str, str]) -> None:
        """Reject the batch: it cannot be trained on, for example because a trajectory is missing.

        `reasons` has the groups at fault, by `BatchGroup.id`: they are void, and their prompts are
        requeued. The other groups wait for one of the next batches.
        """
        self._check_current(batch)
        if batch is self._committing:
            raise LedgerError(
                f"the batch of step {batch.step} cannot be rejected: its weights may be served "
                "already. Stop the run and resume it"
            )
        if not reasons or not reasons.keys() <= {group.id for group in batch.groups}:
            raise UsageError("reasons must name groups of the batch, at least one")
        await self._scheduler.reject(reasons)

    def _check_current(self, batch: Batch) -> None:
        """Refuse a batch that is not the current one: each is committed once, or rejected."""
        if batch.version != self.version:
            raise LedgerError(
                f"the batch is of version {batch.version}, and the run is at {self.version}: "
                "it was committed before, or is of another run"
            )
        under_way = {group.id for group in self._ledger.books.training}
        if {group.id for group in batch.groups} != under_way:
            raise LedgerError(
                f"the batch for step {batch.step} is not the current batch: it was rejected before"
            )

    async def save(self, checkpoint: Save, version: Version) -> None:
        """Write a checkpoint of the current version, or of the version that the current batch
        makes.

        For a trainer that ends between two checkpoints.
        """
        ahead = self._ledger.books.is_training and version == self._next_version
        if version != self.version and not ahead:
            raise LedgerError(
                f"cannot save version {version}: the run is at version {self.version}"
            )
        await self._save(checkpoint, version)

    def stop(self, why: str = "it was stopped") -> bool:
        """Start nothing more, and let `batches` end. False if the run has not begun."""
        if self._loop is None:
            return False
        self._scheduler.stop(why)
        return True

    @property
    def is_over(self) -> bool:
        """True once the run has ended in order and has a summary."""
        return self._summary is not None

    def status(self) -> Status:
        return self._reporter.status()

    @property
    def summary(self) -> RunSummary:
        """The summary, after the end of the run."""
        assert self._summary is not None, "the run is not over"
        return self._summary

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
