"""A validation on the scheduler: its records are of the content that its trials ran on."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from scripted_workers import ONE, use_workers

from plimsoll.core.endings import Ending
from plimsoll.runs.validation.admission import ValidationState
from plimsoll.runs.validation.records import RecordFolder, TaskRecords
from plimsoll.tasks.task import Task
from plimsoll.trials.verdicts import Graded, Verdict
from plimsoll.workers.messages import Order

MakeTasks = Callable[..., tuple[Task, ...]]
Plimsoll = Callable[..., CompletedProcess[str]]
ZERO = Graded(0.0, Ending.SUBMITTED, {"reward": 0.0})


async def solved_by_the_oracle(order: Order) -> Verdict:
    await asyncio.sleep(0)
    return ONE if order.agent == "oracle" else ZERO


def test_a_task_that_changes_before_its_validation_is_resumed_is_not_validated(
    make_tasks: MakeTasks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plimsoll_here: Plimsoll,
    caplog: pytest.LogCaptureFixture,
):
    changed, same = make_tasks("a", "b")
    use_workers(monkeypatch, solved_by_the_oracle)
    assert plimsoll_here("validate", "tasks").returncode == 0
    (run,) = (tmp_path / "runs").iterdir()
    (changed.path / "instruction.md").write_text("Do something.\n")

    workers = use_workers(monkeypatch, solved_by_the_oracle)
    resumed = plimsoll_here("resume", run.name)

    assert resumed.returncode == 0, resumed.stderr
    assert workers.orders == []
    assert "a changed since this validation began" in caplog.text
    records = TaskRecords.load(RecordFolder.of(tmp_path / "tasks"))
    assert records.status(changed.path, "local").state is ValidationState.CHANGED
    assert records.status(same.path, "local").state is ValidationState.VALID
