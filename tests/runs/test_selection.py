"""Selection of tasks: an invalid one is named, and the rest runs only on request."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plimsoll.core.errors import UsageError
from plimsoll.runs.task_sets import select_tasks
from plimsoll.tasks.task import Task

MakeTasks = Callable[..., tuple[Task, ...]]


def break_task(folder: Path) -> None:
    (folder / "task.toml").write_text('[agent]\ntimeout_sec = "soon"\n')


def test_one_invalid_task_rejects_the_set_and_is_named(make_tasks: MakeTasks, tmp_path: Path):
    make_tasks("bad", "good")
    break_task(tmp_path / "tasks/bad")
    with pytest.raises(UsageError) as caught:
        select_tasks(tmp_path / "tasks", pattern=None, skip_invalid=False)
    message = str(caught.value)
    assert message.startswith(
        "nothing was run: 1 task is not valid; --skip-invalid runs the other 1"
    )
    assert "tasks/bad/task.toml:2: agent.timeout_sec" in message


def test_skip_invalid_runs_the_others_and_still_names_the_invalid_task(
    make_tasks: MakeTasks, tmp_path: Path
):
    make_tasks("bad", "good")
    break_task(tmp_path / "tasks/bad")
    selection = select_tasks(tmp_path / "tasks", pattern=None, skip_invalid=True)
    assert [task.name for task in selection.tasks] == ["good"]
    assert len(selection.problems) == 1


def test_a_set_without_a_valid_task_is_rejected_despite_skip_invalid(
    make_tasks: MakeTasks, tmp_path: Path
):
    make_tasks("bad")
    break_task(tmp_path / "tasks/bad")
    with pytest.raises(UsageError, match="no task is valid"):
        select_tasks(tmp_path / "tasks", pattern=None, skip_invalid=True)


def test_a_pattern_without_the_invalid_task_is_accepted(make_tasks: MakeTasks, tmp_path: Path):
    make_tasks("bad", "good")
    break_task(tmp_path / "tasks/bad")
    selection = select_tasks(tmp_path / "tasks", pattern="g*", skip_invalid=False)
    assert [task.name for task in selection.tasks] == ["good"]
    assert selection.problems == ()


def test_unknown_keys_are_reported(make_tasks: MakeTasks, tmp_path: Path):
    make_tasks("a")
    (tmp_path / "tasks/a/task.toml").write_text("[agent]\ntimeout_secs = 3\n")
    selection = select_tasks(tmp_path / "tasks", pattern=None, skip_invalid=False)
    assert [key.key for key in selection.unknown_keys] == ["agent.timeout_secs"]
