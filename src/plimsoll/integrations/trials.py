"""Trials of tasks that another trainer chooses, run by the same scheduler as a run.

A void trial never becomes a number: it is retried as the table of causes says, and one that stays
void has no reward. The breaker watches all of them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from plimsoll.config.file import Config, load_config
from plimsoll.core.errors import TrainingError, UsageError
from plimsoll.core.versions import Version
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.canaries import DEFAULT_EVERY
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.evaluation.requests import write_request
from plimsoll.runs.files.results import Row, TrialCounts
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollout_buffer import RolloutBuffer
from plimsoll.runs.scheduling.trial_set import SetOptions, TrialGroup, TrialSet
from plimsoll.runs.session import RunParts, RunSession
from plimsoll.tasks.task import Task
from plimsoll.workers.worker.policy_service import ServedPolicy

__all__ = ["Trials"]


class Trials(RunSession):
    """Runs the trials of an outside trainer. Its workers are up while it is entered."""

    def __init__(
        self,
        config: Config | Path | str,
        served: ServedPolicy,
        *,
        out: Path | None = None,
        kind: Literal["trl", "verl"],
        keep_going: bool = False,
    ) -> None:
        read = config if isinstance(config, Config) else load_config(Path(config))
        # The trainer decides when it ends, so canaries run whatever the number of steps is.
        steps, every = read.run.steps or 1, read.run.canary_every
        canaries = DEFAULT_EVERY if every is None else every
        run = read.run.model_copy(update={"steps": steps, "canary_every": canaries})
        plan = Plan.make(read.model_copy(update={"run": run}), served)
        super().__init__(plan, out=out, kind=kind, resumes=False)
        self._keep_going = keep_going
        self._counts = TrialCounts()

    @property
    def tasks(self) -> list[str]:
        """The tasks that can be requested: all but those in quarantine."""
        return sorted(self.plan.trained.admitted)

    def set_version(self, version: Version) -> None:
        """Set the version that the policy generates with from now on."""
        assert self._workers is not None, "enter it first"
        self._workers.set_version(version)

    async def run(self, task: str, name: str) -> Row:
        """Run one trial: see `run_all`."""
        (row,) = await self.run_all([task], name)
        return row

    async def run_all(self, tasks: Sequence[str], name: str) -> list[Row]:
        """Run a trial of each task. Returns graded rows, and void rows that were retried in vain.

        The trajectory of a row is an absolute path or a URL here. Raises `TrainingError` when the
        breaker trips: no later reward could be trusted.
        """
        assert self._loop is not None, "enter it first"
        groups = [TrialGroup(self._task(task), attempt=1) for task in tasks]
        sets = self._scheduler.sets
        trials = TrialSet(sets.new_name(name), f"trials of {name}", groups, 1, self._options())
        self._counts.total += len(groups)
        if not await self._scheduler.run_set(trials):
            raise self._stopped()
        for row in trials.in_order:
            self._counts.add(row)
        stored = self.directory.stored
        return [replace(row, trajectory=stored(row.trajectory)) for row in trials.in_order]

    def _options(self) -> SetOptions:
        directory = self.directory
        return SetOptions(
            folder=lambda group, ticket: directory.rollout(group.task.name, ticket),
            append=directory.append,
            is_watched=True,
            is_seeded=False,
            is_versioned=False,
        )

    def _stopped(self) -> TrainingError:
        trip = self._breaker.trip
        if trip is None:
            return TrainingError(f"no trial is started any more: {self._scheduler.why}")
        return TrainingError(
            f"the breaker tripped ({trip.rule}): {trip.message}; look at {self.directory.path}, "
            "or ignore the breaker with keep_going=True"
        )

    def _write_settings(self) -> None:
        super()._write_settings()
        write_request(self.directory, self._kind, {})

    async def _recover(self) -> RunParts:
        self._breaker = Breaker(BreakerLimits(tasks=len(self.tasks), stops=not self._keep_going))
        return RunParts(
            buffer=RolloutBuffer(self.directory),
            breaker=self._breaker,
            counts=lambda: self._counts,
        )

    def _task(self, name: str) -> Task:
        task_set = self.plan.trained
        if name in task_set.left_out:
            raise UsageError(f"the task {name} is in quarantine: {task_set.left_out[name]}")
        if name not in task_set.tasks:
            where = self.plan.config.run.tasks
            raise UsageError(f"there is no task {name!r} in {where}: rows name tasks of the config")
        return task_set.tasks[name]
