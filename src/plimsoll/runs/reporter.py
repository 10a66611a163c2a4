"""The reports of a run: its current status, a line for each step, its summary at the end."""

import asyncio
import contextlib
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.core.versions import Version
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.batches import Batch, group_statistics
from plimsoll.runs.breaker.breaker import BreakerMonitor
from plimsoll.runs.breaker.diagnosis import RunContext, diagnose
from plimsoll.runs.evaluation.held_out import HeldOutResult
from plimsoll.runs.files.directory import RunDirectory, write_whole
from plimsoll.runs.files.results import Diagnosis, TrialCounts, mean
from plimsoll.runs.files.status import RunSummary, Status
from plimsoll.runs.files.steps import Seconds, Step, StepsFile, TrainerFigures
from plimsoll.runs.plan import Plan, validate_command
from plimsoll.runs.scheduling.scheduler import Scheduler
from plimsoll.sandboxes.pool.stats import PoolStats
from plimsoll.tasks.assets.plan import unstaged_requests
from plimsoll.workers.controller.protocol import Workers
from plimsoll.workers.worker.sandbox_pool import measured, reuse_of

__all__ = ["Reporter"]

_SHOWN_STEPS = 60
_STATUS_SECONDS = 1.0
_CHECKED_EVENTS = 200_000
"""The longest journal that is checked at the end of a run: a longer one takes too long."""


@dataclass(slots=True)
class Reporter:
    """Reads the parts of a run and writes its reports."""

    plan: Plan
    directory: RunDirectory
    ledger: Ledger
    workers: Workers
    monitor: BreakerMonitor
    scheduler: Scheduler
    steps: list[Step]
    """The committed steps, including those of earlier processes."""
    held_out: list[HeldOutResult]
    """The evaluations, including those of earlier processes, in the order of their steps."""
    ledger_at: str = ""
    """The location of the ledger and the reason, if it is not in the run directory."""
    kind: str = "run"
    """`run`, `eval`, `validate`, `trl` or `verl`."""
    counts: Callable[[], TrialCounts] | None = None
    """Counts the trials of a run without training."""
    began: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _ended: bool = False
    _waited: float = 0.0
    _before: float = 0.0
    """The duration of the steps of earlier processes."""
    _steps_file: StepsFile = field(init=False)

    def __post_init__(self) -> None:
        self._before = sum(step.seconds.total for step in self.steps)
        self._steps_file = StepsFile(self.directory.steps)

    @property
    def seconds(self) -> float:
        """The running time of this process and of the committed steps of earlier ones, in
        seconds."""
        return self._before + time.monotonic() - self.began

    @property
    def trials_per_second(self) -> float:
        life = time.monotonic() - self.began
        return round(self.scheduler.finished / life, 3) if life > 0 else 0.0

    def waited(self, seconds: float) -> None:
        """Record the time that the trainer waited for a batch."""
        self._waited += seconds

    async def evaluated(self, measured: HeldOutResult) -> None:
        """Record a finished evaluation."""
        self.held_out.append(measured)
        await self.directory.append_held_out(measured)

    async def step(
        self,
        batch: Batch,
        version: Version,
        skipped: str,
        figures: TrainerFigures | None,
        *,
        checkpoint: float | None = None,
        publish: float | None = None,
        is_complete: bool = False,
    ) -> None:
        """Write the line of a step: before it is committed as this version, and again once it is
        (`is_complete`), with the seconds of its checkpoint and of publishing."""
        members = [member for group in batch.groups for member in group.members]
        now = time.monotonic()
        report = None if figures is None else figures.update
        seconds = Seconds(
            total=round(now - self._last, 4),
            wait=round(self._waited, 4),
            read=None if figures is None else figures.read_seconds,
            update=None if figures is None else figures.update_seconds,
            checkpoint=checkpoint,
            publish=publish,
        )
        made = Step(
            step=batch.step,
            version=str(version),
            at=time.time(),
            reward=batch.reward,
            age=batch.age,
            groups=len(batch.groups),
            flat_groups=sum(group_statistics(one.rewards).zero_variance for one in batch.groups),
            graded=sum(member.reward is not None for member in members),
            withheld=sum(member.withheld for member in members),
            void=self._void,
            sandbox_seconds=batch.sandbox_seconds,
            skipped=skipped or ("" if report is None else report.skipped),
            seconds=seconds,
            untrainable=None if figures is None else figures.untrainable,
            tokens_per_second=None if report is None else seconds.rate(report.tokens),
            update=report,
        )
        if is_complete:
            self._last, self._waited = now, 0.0
        # A step whose commit failed is recorded again.
        self.steps[:] = [*(step for step in self.steps if step.step < made.step), made]
        await asyncio.to_thread(self._steps_file.write, made, is_complete=is_complete)

    def status(self) -> Status:
        books, scheduler = self.ledger.books, self.scheduler
        last = self.steps[-_SHOWN_STEPS:]
        counts = None if self.counts is None else self.counts()
        return Status(
            run=self.directory.name,
            state=scheduler.state,
            why=scheduler.why,
            at=time.time(),
            seconds=round(self.seconds, 1),
            step=books.version.number,
            steps=self.plan.steps,
            version=str(books.version),
            rewards=[step.reward for step in last],
            age=last[-1].age if last else 0,
            max_staleness=self.plan.settings.max_staleness,
            kind=self.kind,
            total=None if counts is None else counts.total,
            mean_reward=None if counts is None else counts.mean_reward,
            trials=self._trials if counts is None else counts.trials,
            graded=books.tally.graded if counts is None else counts.graded,
            void=self._void if counts is None else counts.void,
            trials_per_second=self.trials_per_second,
            running=scheduler.running,
            waiting=max(0, books.running - scheduler.running),
            buffered=books.buffered,
            requeued=books.tally.requeued,
            out=self._out,
            heldout={one.step: one.reward for one in self.held_out},
            canaries=_canaries(self.monitor),
            ledger=self.ledger_at,
            workers=self.workers.status(),
            workers_wait=self.workers.waiting,
            pool=self._pool,
            warnings=self.workers.reports.warnings,
        )

    async def keep_status(self) -> None:
        """Write the status each second, until cancelled."""
        while True:
            await asyncio.to_thread(self._write, self.status())
            await asyncio.sleep(_STATUS_SECONDS)

    def end_status(self) -> None:
        """Write the status for the last time. Later writes are ignored."""
        last = msgspec.structs.replace(self.status(), state="ended", workers=[], workers_wait="")
        self._write(last, is_last=True)

    def summary(self) -> RunSummary:
        """The summary of the run, once no trial runs."""
        books, scheduler = self.ledger.books, self.scheduler
        # The last line may be of a step that was not committed.
        rewards = [step.reward for step in self.steps if step.step <= books.version.number]
        return RunSummary(
            run=self.directory.name,
            path=str(self.directory.path),
            ended=scheduler.why,
            done=scheduler.is_done,
            steps=books.version.number,
            version=str(books.version),
            trials=self._trials,
            graded=books.tally.graded,
            void=self._void,
            reward=mean(reward for reward in rewards if reward is not None),
            rewards=rewards,
            heldout_before=self.held_out[0].reward if self.held_out else None,
            heldout_after=self.held_out[-1].reward if len(self.held_out) > 1 else None,
            skipped=dict(Counter(step.skipped for step in self.steps if step.skipped)),
            max_age=max(books.tally.token_ages, default=0),
            eta=self.plan.settings.max_staleness,
            seconds=round(self.seconds, 1),
            trials_per_second=self.trials_per_second,
            left_over=books.buffered,
            quarantined=list(self._out),
            out=self._out,
            problems=self._problems(),
            breaker=self.diagnosis(),
            pool=self._pool,
            warnings=self.workers.reports.warnings,
        )

    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the breaker's trip; None without one."""
        breaker = self.monitor.breaker
        if (trip := breaker.trip) is None:
            return None
        look, fetched = None, ()
        if (row := trip.example) is not None:
            look = str(self.directory.folder_of(row))
            fetched = unstaged_requests(self.plan.tasks[row.task], self.plan.assets)
        resume = f"plimsoll resume {shlex.quote(str(self.directory.path))}"
        context = RunContext(
            path=shlex.quote(self.plan.config.run.tasks or ""),
            validate=validate_command(self.plan.config),
            unstaged=fetched,
            again=resume,
            keep_going=f"{resume} --keep-going",
        )
        return diagnose(trip, context, look=look, stopped=breaker.tripped)

    @property
    def _pool(self) -> PoolStats | None:
        return measured(self.workers.reports.meter.stats(reuse_of(self.plan.config)))

    @property
    def _trials(self) -> int:
        tally = self.ledger.books.tally
        return tally.graded + sum(tally.tickets_by_cause.values())

    @property
    def _out(self) -> dict[str, str]:
        return {**self.plan.left_out, **self.ledger.books.quarantined}

    @property
    def _void(self) -> dict[str, int]:
        causes = self.ledger.books.tally.tickets_by_cause
        return {cause.value: causes[cause] for cause in sorted(causes, key=lambda c: -causes[c])}

    def _problems(self) -> list[str] | None:
        if self.ledger.position > _CHECKED_EVENTS:
            return None
        # Imported here: an evaluation does not check its ledger at its end.
        from plimsoll.runs.audit import audit

        return audit(self.directory.path).problems

    def _write(self, status: Status, *, is_last: bool = False) -> None:
        # A thread of a cancelled call may still be writing the previous status.
        with self._writing:
            if self._ended:
                return
            self._ended = is_last
            # A failing disk is reported by the writes of results; a missing status is harmless.
            with contextlib.suppress(UsageError):
                write_whole(self.directory.status, msgspec.json.encode(status))


def _canaries(monitor: BreakerMonitor) -> str:
    canaries = monitor.canaries
    if canaries is None:
        return "none"
    return f"{canaries.good:,} of {canaries.good + canaries.failed:,} good"
