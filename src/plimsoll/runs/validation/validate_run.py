"""`plimsoll validate`: checks a request, runs the oracle and nop, and records the results."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from plimsoll.config.file import Config, load_config
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.breaker.rules import Bugs
from plimsoll.runs.evaluation.requests import read_request
from plimsoll.runs.evaluation.trial_run import (
    TrialSetRequest,
    TrialSetRun,
    evaluation_settings,
)
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.results import Row
from plimsoll.runs.plan import Plan, worker_variables
from plimsoll.runs.scheduling.trial_set import TrialGroup
from plimsoll.runs.task_sets import TaskSet
from plimsoll.runs.validation.records import (
    Attempt,
    RecordFolder,
    TaskRecord,
    TaskRecords,
    digest_task,
    judge_task,
)
from plimsoll.tasks.assets.staged_assets import load_assets
from plimsoll.tasks.loader import LoadedTasks, load_tasks
from plimsoll.tasks.problems import UnknownKey
from plimsoll.tasks.task import Task
from plimsoll.workers.worker.backends import check_compose, make_backend

__all__ = ["Report", "ValidateRequest", "ValidateRun"]

_log = logging.getLogger(__name__)
_AGENTS = ("oracle", "nop")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest(TrialSetRequest):
    """The options of `plimsoll validate`, and the content that its first process began with."""

    repeat: int
    digests: dict[str, str] = field(default_factory=dict[str, str])
    """The digest of each task at the start, by name."""
    assets_key: str | None = None
    """The key of the assets at the start; None before it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The object that `--json` prints."""

    backend: str
    tasks: int
    valid: int
    quarantined: int
    flaky: int
    not_finished: list[str]
    """Tasks with unfinished trials; nothing is recorded for them."""
    results: list[TaskRecord]
    validation: str
    quarantine: str
    run: str
    """The run directory with the trials."""


class ValidateRun(TrialSetRun):
    """A validation that is checked and ready to run."""

    def __init__(
        self,
        request: ValidateRequest,
        config: Config,
        loaded: LoadedTasks,
        *,
        out: Path | None,
        resumes: bool = False,
    ) -> None:
        config = request.applied_to(config, agent=_AGENTS[0])
        make_backend(request.backend, config)
        assets = load_assets(config.assets.path)
        request = _with_content(request, loaded, assets.key if assets is not None else "")
        self.request = request
        self.loaded = loaded
        self.records = TaskRecords.load(RecordFolder.of(request.path, request.out))
        self._done: dict[str, TaskRecord] = {}
        plan = Plan(
            config=config,
            settings=evaluation_settings(request.concurrency),
            trained=TaskSet(tasks={task.name: task for task in loaded.tasks}),
            held_out=TaskSet(),
            canaries=None,
            assets=assets,
            policy=None,
            served=None,
            environment=worker_variables(config.workers.env),
        )
        groups = [
            TrialGroup(task, agent, attempt)
            for attempt in range(1, request.repeat + 1)
            for task in loaded.tasks
            for agent in _AGENTS
        ]
        super().__init__(
            plan,
            groups,
            # Broken tasks are expected here: only a bug of Plimsoll stops it.
            breaker=Breaker(BreakerLimits(), (Bugs(),)),
            request=request,
            out=out,
            kind="validate",
            resumes=resumes,
        )

    @classmethod
    def prepare(cls, request: ValidateRequest, out: Path | None = None) -> "ValidateRun":
        """Check everything that can be checked before anything is started."""
        if request.is_elsewhere:
            request = replace(request, path=request.path.absolute())
        config = load_config(request.config)
        loaded = load_tasks(request.path, request.pattern)
        if not request.is_elsewhere:
            check_compose(request.backend, loaded.tasks)
        RecordFolder.of(request.path, request.out).check_writable()
        return cls(request, config, loaded, out=out, resumes=out is not None)

    @classmethod
    def resume(cls, directory: RunDirectory) -> "ValidateRun":
        """Continue the validation of a run directory."""
        request = read_request(directory, ValidateRequest)
        # The run's own config has the options of these tables, and may have been edited since.
        made = replace(request, config=directory.config, assets=None, pool=None)
        return cls.prepare(made, out=directory.path)

    @property
    def unknown_keys(self) -> tuple[UnknownKey, ...]:
        return tuple(key for task in self.loaded.tasks for key in task.unknown_keys)

    def look(self, record: TaskRecord) -> Path | None:
        """The folder of the trial to look at first; None if the task has none."""
        if not record.oracle:
            return None
        task = next(
            t for t in self.loaded.tasks if self.records.location.key(t.path) == record.task
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
        for row in self.tally.rows:
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
        """Write the records of finished tasks, and the run's summary."""
        results = self.results()
        summary = self.summary_of(len(self.loaded.tasks))
        self._write_summary(msgspec.structs.replace(summary, pool=self.pool))
        # Merge into the current files: another process may have validated other tasks meanwhile.
        validation, quarantine = TaskRecords.add(self.records.location, results)
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
            task=self.records.location.key(path),
            backend=self.request.backend,
            ok=reason is None,
            reason=reason,
            flaky=None,
            maximum=None,
            oracle=[],
            nop=[],
            # From before the trials: a task that changes meanwhile is not validated.
            digest=self.request.digests[name],
            date=date,
            assets=self.request.assets_key or "",
        )


def _with_content(request: ValidateRequest, loaded: LoadedTasks, assets: str) -> ValidateRequest:
    """Add the digests of the tasks and the key of the assets. Those of an earlier process stay:
    its trials are part of the records."""
    now = {task.name: digest_task(task.path) for task in (*loaded.tasks, *loaded.invalid)}
    if changed := [name for name in now if request.digests.get(name, now[name]) != now[name]]:
        more = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
        _log.warning(
            "%s%s changed since this validation began: its records are of the earlier content; "
            "validate again",
            *(changed[0], more),
        )
    key = assets if request.assets_key is None else request.assets_key
    return replace(request, digests={**now, **request.digests}, assets_key=key)


def _attempt(row: Row) -> Attempt:
    return Attempt(reward=row.reward, cause=row.cause, reason=row.reason)
