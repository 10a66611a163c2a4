"""`TrialSetRun`: a run of one trial set. `plimsoll eval` and `plimsoll validate` use it.

Attempts come before tasks: each task is tried once before any is tried again. A killed or stopped
run is resumed from its directory: trials that are final in the ledger are not run again.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plimsoll.config.file import Config
from plimsoll.ledger.settings import Settings
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.evaluation.requests import write_request
from plimsoll.runs.evaluation.trial_recovery import restore_trials
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.results import Summary, Tally, TrialCounts
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollout_buffer import RolloutBuffer
from plimsoll.runs.scheduling.trial_set import SetOptions, TrialGroup, TrialSet
from plimsoll.runs.session import RunParts, RunSession
from plimsoll.sandboxes.pool.stats import PoolStats
from plimsoll.workers.worker.sandbox_pool import measured, reuse_of

__all__ = ["RunningTrial", "TrialSetRequest", "TrialSetRun", "evaluation_settings"]

SET_NAME = "trials"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetRequest:
    """The options that `plimsoll eval` and `plimsoll validate` share.

    A resumed run has those of [pool] and [assets] in its config, which may have been edited since.
    """

    path: Path
    backend: str
    concurrency: int
    """Concurrent trials, over all workers."""
    pattern: str | None
    out: Path | None
    config: Path | None
    assets: Path | None = None
    """The staged assets, to override the config."""
    pool: str | None = None
    """The reuse of sandboxes, to override the config."""
    workers: int | None = None
    """The number of worker processes; no processes if neither this nor an engine is given."""
    engine: Literal["process", "ray"] | None = None

    @property
    def in_process(self) -> bool:
        """True for one worker in this process."""
        return self.workers is None and self.engine is None

    @property
    def is_elsewhere(self) -> bool:
        """True if workers may be on other hosts, or have another working directory."""
        return self.engine == "ray"

    def applied_to(self, config: Config, *, agent: str) -> Config:
        """The config of the run: `config` with these options."""
        number = self.workers or 1
        run = {"tasks": str(self.path.absolute()), "agent": agent, "backend": self.backend}
        workers: dict[str, object] = {
            "number": number,
            "concurrency": math.ceil(self.concurrency / number),
            "engine": self.engine or "process",
        }
        assets = config.assets.folder if self.assets is None else str(self.assets.absolute())
        pool = self.pool or config.pool.reuse
        return config.model_copy(
            update={
                "run": config.run.model_copy(update=run),
                "workers": config.workers.model_copy(update=workers),
                "pool": config.pool.model_copy(update={"reuse": pool}),
                "assets": config.assets.model_copy(update={"folder": assets}),
            }
        )


def evaluation_settings(concurrency: int) -> Settings:
    """The ledger's settings for a run without training."""
    return Settings(batch_groups=1, max_running=concurrency, depth=0, max_staleness=0, group_size=1)


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A running trial, for a progress display."""

    label: str
    phase: str
    since: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


class TrialSetRun(RunSession):
    """A session with one trial set. Its progress can be read at any time."""

    def __init__(
        self,
        plan: Plan,
        groups: Sequence[TrialGroup],
        *,
        breaker: Breaker,
        request: TrialSetRequest,
        out: Path | None,
        kind: str,
        resumes: bool,
    ) -> None:
        super().__init__(plan, out=out, kind=kind, in_process=request.in_process, resumes=resumes)
        self.breaker = breaker
        self._request = request
        self._started: float | None = None
        self._ended: float | None = None
        self._is_stopped = False
        self.open_directory()
        self.trials = TrialSet(SET_NAME, "trials", groups, 1, _options(self.directory))
        self.earlier = 0
        """Final trials of earlier processes. `seconds` does not cover them."""

    def _write_settings(self) -> None:
        super()._write_settings()
        write_request(self.directory, self._kind, self._request)

    async def _recover(self) -> RunParts:
        if not self._is_new:
            await restore_trials(self.trials, self._ledger, self.directory)
            self.earlier = len(self.trials.results)
        return RunParts(
            buffer=RolloutBuffer(self.directory),
            breaker=self.breaker,
            counts=self._counts,
        )

    def _counts(self) -> TrialCounts:
        counts = TrialCounts(self.trials.total)
        for row in self.trials.results:
            counts.add(row)
        return counts

    async def run(self) -> None:
        """Run to the end, or until the breaker trips. Running trials end before it returns."""
        self._started = time.monotonic()
        try:
            async with self:
                is_over = await self._scheduler.run_set(self.trials, gives_up=False)
                # A canary may still be running, and may void the last trials.
                await self._scheduler.wait_idle()
                self._is_stopped = not is_over
                self._scheduler.stop("all trials are done", is_done=True)
        finally:
            self._ended = time.monotonic()

    @property
    def total(self) -> int:
        return self.trials.total

    @property
    def tally(self) -> Tally:
        """The final trials; if the breaker stopped the run, also those awaiting a retry."""
        rows = self.trials.rows.values() if self._is_stopped else self.trials.results
        return Tally(list(rows))

    @property
    def canaries(self) -> Canaries | None:
        return self.plan.canaries

    @property
    def warnings(self) -> list[str]:
        return [] if self._workers is None else self._workers.reports.warnings

    @property
    def running(self) -> list[RunningTrial]:
        """The running trials, the longest-running first."""
        if self._loop is None or self._workers is None:
            return []
        phases = self._workers.phases
        return [
            RunningTrial(
                _label(order.name, order.agent, order.attempt, ticket),
                phases.get(ticket, ""),
                since,
            )
            for ticket, (order, since) in self._scheduler.orders.items()
        ]

    @property
    def seconds(self) -> float:
        """The time since the start, or from start to end once finished."""
        if self._started is None:
            return 0.0
        return (self._ended or time.monotonic()) - self._started

    @property
    def pool(self) -> PoolStats | None:
        if self._workers is None:
            return None
        return measured(self._workers.reports.meter.stats(reuse_of(self.plan.config)))

    def summary_of(self, tasks: int) -> Summary:
        return self.tally.summary(tasks=tasks, seconds=self.seconds, earlier=self.earlier)

    def _write_summary(self, summary: Summary) -> None:
        """Write the summary, unless the run ended before its first trial: a new one leaves no
        directory, and a resumed one keeps its earlier summary."""
        if self.has_begun:
            self.directory.finish(summary)


def _options(directory: RunDirectory) -> SetOptions:
    def folder(group: TrialGroup, ticket: str) -> Path:
        del ticket
        return directory.trial(group.task.name, group.attempt or 1, group.agent)

    # Unseeded: each attempt samples independently.
    return SetOptions(
        folder=folder,
        append=directory.append,
        is_watched=True,
        is_seeded=False,
        is_versioned=False,
    )


def _label(task: str, agent: str, attempt: int, ticket: str) -> str:
    name = f"{task}.{agent}.{attempt}" if agent else f"{task}.{attempt}"
    return f"{name} (canary)" if ticket.startswith("canary-") else name
