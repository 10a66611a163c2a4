"""Validation at the start of a run, for tasks without a current validation.

Runs in the run's own process, before workers are started: if the tasks cannot be graded, nothing
else is started. Records go to the folder of `plimsoll validate`, so tasks are validated once.
"""

import itertools
from pathlib import Path

from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.plan import Plan
from plimsoll.runs.task_sets import TaskSet
from plimsoll.runs.validation.records import RecordFolder
from plimsoll.runs.validation.validate_run import ValidateRequest, ValidateRun
from plimsoll.tasks.loader import LoadedTasks
from plimsoll.tasks.task import Task
from plimsoll.workers.worker.backends import check_compose

__all__ = ["ValidationAtStart"]


class ValidationAtStart:
    """Validates the tasks of a run. `doing` is its progress."""

    def __init__(self, plan: Plan, directory: RunDirectory) -> None:
        self._plan = plan
        self._directory = directory
        self._doing = ""
        self._run: ValidateRun | None = None

    @property
    def doing(self) -> str:
        if self._run is None:
            return ""
        return f"{self._doing} · {self._run.tally.trials:,}/{self._run.total:,} trials"

    async def run(self) -> Plan:
        """The plan without the tasks that fail. Raises if too many fail."""
        for tasks, name in ((self._plan.trained, "tasks"), (self._plan.held_out, "heldout")):
            if unknown := tasks.unknown():
                self._run = self._make(tasks, unknown, name)
                self._doing = f"validating {name} with oracle and nop"
                try:
                    await self._run.run()
                finally:
                    # Record the finished tasks, also after an error.
                    self._run.finish()
                    self._run = None
        return self._plan.validated()

    def _make(self, tasks: TaskSet, unknown: tuple[Task, ...], name: str) -> ValidateRun:
        config = self._plan.config
        assert tasks.candidates is not None, "tasks come from a folder"
        request = ValidateRequest(
            path=tasks.candidates.path,
            backend=config.run.backend,
            repeat=1,
            concurrency=config.workers.concurrency,
            pattern=None,
            out=None,
            config=None,
        )
        check_compose(request.backend, unknown)
        RecordFolder.of(request.path).check_writable()
        return ValidateRun(request, config, LoadedTasks(unknown, ()), out=self._folder(name))

    def _folder(self, name: str) -> Path:
        """An unused folder: the tasks of a resumed run may have changed."""
        folder = self._directory.path / "validation"
        return next(
            path
            for number in itertools.count(1)
            if not (path := folder / (name if number == 1 else f"{name}-{number}")).exists()
        )
