"""From what a person asks `plimsoll validate` for to the record of each task, kept for runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from plimsoll.agents.registry import make_agent
from plimsoll.config.file import Config, load_config
from plimsoll.runs.backends import check_compose, make_backend
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.bugs import Bugs
from plimsoll.runs.breaker.policy import Policy
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.evaluation.eval_loop import Evaluation
from plimsoll.runs.evaluation.eval_run import trials_by
from plimsoll.runs.pooling import hints_for, make_pool, measured
from plimsoll.runs.results import Row
from plimsoll.runs.validation.records import (
    Attempt,
    RecordFolder,
    TaskRecord,
    TaskRecords,
    digest_task,
    judge_task,
)
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.tasks.assets.staged_assets import load_assets
from plimsoll.tasks.loader import LoadedTasks, load_tasks
from plimsoll.tasks.problems import UnknownKey
from plimsoll.tasks.task import Task
from plimsoll.trials.artifacts import Bounds

__all__ = ["Report", "ValidateRequest", "ValidateRun"]

_AGENTS = ("oracle", "nop")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest:
    """What `plimsoll validate` was asked for."""

    path: Path
    backend: str
    repeat: int
    concurrency: int
    pattern: str | None
    out: Path | None
    config: Path | None
    assets: Path | None = None
    pool: str | None = None
    """How sandboxes are used, if not as the config says."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The object that `--json` prints."""

    backend: str
    tasks: int
    valid: int
    quarantined: int
    flaky: int
    not_finished: list[str]
    """Tasks of which not every trial finished; nothing is recorded for them."""
    results: list[TaskRecord]
    validation: str
    quarantine: str
    run: str
    """Where the trials are."""


@dataclass(frozen=True, slots=True)
class ValidateRun:
    """A validation with everything that it needs."""

    request: ValidateRequest
    backend: Pool
    loaded: LoadedTasks
    validation: TaskRecords
    digests: dict[str, str]
    """Of each task before it was run: what changes meanwhile is not validated."""
    assets: str
    """The key of the assets that the sandboxes have."""
    directory: RunDirectory
    evaluation: Evaluation
    _done: dict[str, TaskRecord] = field(default_factory=dict[str, TaskRecord])

    @classmethod
    def prepare(cls, request: ValidateRequest) -> "ValidateRun":
        """Check all that can be checked before anything is started."""
        config = load_config(request.config)
        loaded = load_tasks(request.path, request.pattern)
        check_compose(request.backend, loaded.tasks)
        RecordFolder.of(request.path, request.out).check_writable()
        directory = RunDirectory.create(None, now=datetime.now(), kind="validate")
        return cls.make(request, config, loaded, directory)

    @classmethod
    def make(
        cls, request: ValidateRequest, config: Config, loaded: LoadedTasks, directory: RunDirectory
    ) -> "ValidateRun":
        """The validation of tasks that are loaded, with its trials in a directory."""
        backend = make_pool(
            make_backend(request.backend, config),
            config.pool,
            reuse=request.pool,
            concurrency=request.concurrency,
        )
        assets = load_assets(request.assets or config.assets.path)
        validation = TaskRecords.load(RecordFolder.of(request.path, request.out))
        digests = {task.name: digest_task(task.path) for task in (*loaded.tasks, *loaded.invalid)}
        agents = {name: make_agent(name) for name in _AGENTS}
        evaluation = Evaluation(
            loaded.tasks,
            attempts=request.repeat,
            concurrency=request.concurrency,
            trial=trials_by(agents, backend, assets, directory, bounds=Bounds.of(config.storage)),
            directory=directory,
            agents=_AGENTS,
            # Broken tasks are what is looked for: only a fault of our own stops it.
            breaker=Breaker(Policy(), (Bugs(),)),
            hints=hints_for(backend, directory.name, assets, agents.__getitem__),
        )
        key = assets.key if assets is not None else ""
        return cls(request, backend, loaded, validation, digests, key, directory, evaluation)

    async def run(self) -> None:
        async with self.backend:
            await self.evaluation.run()

    @property
    def unknown_keys(self) -> tuple[UnknownKey, ...]:
        return tuple(key for task in self.loaded.tasks for key in task.unknown_keys)

    def look(self, record: TaskRecord) -> Path | None:
        """The folder of the trial to look at first, where the task has any."""
        if not record.oracle:
            return None
        task = next(
            t for t in self.loaded.tasks if self.validation.place.key(t.path) == record.task
        )
        at_fault = [
            self.directory.trial(task.name, number, agent)
            for agent, attempts in (("oracle", record.oracle), ("nop", record.nop))
            for number, attempt in enumerate(attempts, start=1)
            if attempt.reward is None
            or (attempt.reward >= (record.maximum or 1.0)) is (agent == "nop")
        ]
        return at_fault[0] if at_fault else self.directory.trial(task.name, 1, "oracle")

    def results(self) -> list[TaskRecord]:
        """The record of each task whose trials have all finished, in the tasks' order."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        rows: dict[str, list[Row]] = {}
        for row in self.evaluation.tally.rows:
            rows.setdefault(row.task, []).append(row)
        for task in self.loaded.tasks:
            of_task = rows.get(task.name, [])
            if task.name not in self._done and len(of_task) == self.request.repeat * len(_AGENTS):
                self._done[task.name] = self._record(task, of_task, date)
        invalid = [
            self._validated(one.name, one.path, date, f"not a valid task: {one.problems[0]}")
            for one in self.loaded.invalid
        ]
        done = (self._done.get(task.name) for task in self.loaded.tasks)
        return [*(record for record in done if record is not None), *invalid]

    def finish(self) -> Report:
        """Keep the records of what has finished, and write the run's summary."""
        results = self.results()
        summary = self.evaluation.summary
        self.directory.finish(msgspec.structs.replace(summary, pool=measured(self.backend.stats)))
        # To what is there by now: somebody may have validated other tasks meanwhile.
        validation, quarantine = TaskRecords.add(self.validation.place, results)
        return Report(
            backend=self.request.backend,
            tasks=len(self.loaded.tasks) + len(self.loaded.invalid),
            valid=sum(record.ok for record in results),
            quarantined=sum(not record.ok for record in results),
            flaky=sum(record.flaky is not None for record in results),
            not_finished=[t.name for t in self.loaded.tasks if t.name not in self._done],
            results=results,
            validation=str(validation),
            quarantine=str(quarantine),
            run=str(self.directory.path),
        )

    def _record(self, task: Task, rows: Sequence[Row], date: str) -> TaskRecord:
        rows = sorted(rows, key=lambda row: row.attempt)
        oracle, nop = ([_attempt(r) for r in rows if r.agent == agent] for agent in _AGENTS)
        maximum = task.reward_range[1]
        reason, flaky = judge_task(maximum, oracle, nop)
        made = self._validated(task.name, task.path, date, reason)
        return msgspec.structs.replace(made, flaky=flaky, maximum=maximum, oracle=oracle, nop=nop)

    def _validated(self, name: str, path: Path, date: str, reason: str | None) -> TaskRecord:
        return TaskRecord(
            task=self.validation.place.key(path),
            backend=self.request.backend,
            ok=reason is None,
            reason=reason,
            flaky=None,
            maximum=None,
            oracle=[],
            nop=[],
            digest=self.digests[name],
            date=date,
            assets=self.assets,
        )


def _attempt(row: Row) -> Attempt:
    return Attempt(reward=row.reward, cause=row.cause, reason=row.reason)
