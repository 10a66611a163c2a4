"""Validation records: the conditions for a valid task, and those that invalidate a record."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plimsoll.core.errors import UsageError
from plimsoll.runs.validation.admission import ValidationState
from plimsoll.runs.validation.records import (
    Attempt,
    RecordFolder,
    TaskRecord,
    TaskRecords,
    digest_task,
    judge_task,
)
from plimsoll.tasks.task import Task
from plimsoll.trials.verdicts import Cause

MakeTasks = Callable[..., tuple[Task, ...]]


def got(*rewards: float) -> list[Attempt]:
    return [Attempt(reward=reward, cause=None, reason=None) for reward in rewards]


NOT_GRADED = Attempt(reward=None, cause=Cause.GRADER, reason="no curl")


def record(task: str, folder: Path, *, backend: str = "local", reason: str | None = None):
    return TaskRecord(
        task=task,
        backend=backend,
        ok=reason is None,
        reason=reason,
        flaky=None,
        maximum=1.0,
        oracle=got(1.0),
        nop=got(0.0),
        digest=digest_task(folder),
        date="2031-02-03",
    )


def test_a_task_is_valid_if_the_oracle_reaches_the_maximum_and_nop_does_not():
    assert judge_task(1.0, got(1.0), got(0.0)) == (None, None)
    assert judge_task(10.0, got(10.0, 10.0), got(9.5, 9.5)) == (None, None)


def test_an_oracle_below_the_maximum_is_a_fault():
    reason, _ = judge_task(2.0, got(1.0), got(0.0))
    assert reason == "the oracle is graded 1, and the task's maximum is 2"


def test_a_maximum_reward_for_nop_is_a_fault():
    reason, _ = judge_task(1.0, got(1.0), got(1.0))
    assert reason == "nop is graded 1: the task gives its maximum for nothing"


def test_a_void_trial_is_a_fault_and_its_cause_is_named():
    assert judge_task(1.0, [NOT_GRADED], got(0.0))[0] == "the oracle is void: grader: no curl"
    assert judge_task(1.0, got(1.0), [NOT_GRADED])[0] == "nop is void: grader: no curl"


def test_differing_outcomes_are_flaky():
    reason, flaky = judge_task(1.0, [*got(1.0), NOT_GRADED], got(0.0, 0.0))
    assert reason == "the oracle is void, 1 of 2 times: grader: no curl"
    assert flaky == "oracle 1, void: grader"
    assert judge_task(1.0, got(1.0, 0.0), got(0.0, 0.0))[1] == "oracle 1, 0"


def test_a_noisy_nop_below_the_maximum_is_flaky_and_still_valid():
    assert judge_task(1.0, got(1.0, 1.0), got(0.0, 0.2)) == (None, "nop 0, 0.2")


@pytest.fixture
def location(make_tasks: MakeTasks, tmp_path: Path) -> RecordFolder:
    make_tasks("a", "b")
    return RecordFolder.of(tmp_path / "tasks")


def test_records_are_beside_the_tasks_and_never_inside_one(location: RecordFolder, tmp_path: Path):
    assert location.folder == tmp_path / "tasks/.plimsoll"
    assert RecordFolder.of(tmp_path / "tasks/a") == location
    assert location.key(tmp_path / "tasks/a") == "a"


def test_another_folder_does_not_change_task_names(tmp_path: Path, location: RecordFolder):
    given = RecordFolder.of(tmp_path / "tasks/a", tmp_path / "kept")
    assert given.folder == tmp_path / "kept"
    assert given.key(tmp_path / "tasks/a") == "a"


def test_the_current_folder_can_be_a_task(
    location: RecordFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path / "tasks/a")
    here = RecordFolder.of(Path())
    assert (here, here.key(Path())) == (location, "a")


def test_saved_records_can_be_loaded(location: RecordFolder, tmp_path: Path):
    tasks = tmp_path / "tasks"
    records = [record("a", tasks / "a"), record("b", tasks / "b", reason="no curl")]
    TaskRecords.load(location).merged(records).save()
    loaded = TaskRecords.load(location)
    assert loaded.status(tasks / "a", "local").state is ValidationState.VALID
    bad = loaded.status(tasks / "b", "local")
    assert (bad.state, bad.reason) == (ValidationState.QUARANTINED, "no curl")
    assert loaded.status(tasks / "a", "docker").state is ValidationState.UNKNOWN
    assert (location.folder / "quarantine.txt").read_text() == "b\tlocal\tno curl\n"
    assert sorted(path.name for path in location.folder.iterdir()) == [
        "quarantine.txt",
        "validation.json",
    ]


def test_a_changed_task_is_neither_validated_nor_quarantined(
    location: RecordFolder, tmp_path: Path
):
    tasks = tmp_path / "tasks"
    records = [record("a", tasks / "a"), record("b", tasks / "b", reason="no curl")]
    loaded = TaskRecords.load(location).merged(records)
    for name in ("a", "b"):
        (tasks / name / "instruction.md").write_text("Do something else.\n")
        assert loaded.status(tasks / name, "local").state is ValidationState.CHANGED


def test_a_task_listed_by_hand_is_quarantined_despite_its_record(
    location: RecordFolder, tmp_path: Path
):
    TaskRecords.load(location).merged([record("a", tmp_path / "tasks/a")]).save()
    (location.folder / "quarantine.txt").write_text("a\nb\n")
    loaded = TaskRecords.load(location)
    for name in ("a", "b"):
        assert (
            loaded.status(tmp_path / "tasks" / name, "local").state is ValidationState.QUARANTINED
        )


def test_validating_again_replaces_only_the_selected_tasks(location: RecordFolder, tmp_path: Path):
    tasks = tmp_path / "tasks"
    first = [record("a", tasks / "a", reason="x"), record("b", tasks / "b", reason="y")]
    TaskRecords.load(location).merged(first).save()
    TaskRecords.load(location).merged([record("a", tasks / "a")]).save()
    loaded = TaskRecords.load(location)
    assert loaded.status(tasks / "a", "local").state is ValidationState.VALID
    assert loaded.status(tasks / "b", "local").state is ValidationState.QUARANTINED
    assert len(loaded.quarantine.lines) == 1


def test_an_invalid_records_file_is_an_error(location: RecordFolder):
    location.folder.mkdir()
    (location.folder / "validation.json").write_text('{"tasks": 3}')
    with pytest.raises(UsageError, match="not a validation"):
        TaskRecords.load(location)


def test_an_unwritable_folder_is_an_error_with_a_remedy(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another folder with --out DIR"):
        RecordFolder(tmp_path, tmp_path / "file/kept").check_writable()


def test_checking_writability_leaves_no_files(location: RecordFolder):
    location.check_writable()
    assert list(location.folder.iterdir()) == []


def test_other_assets_are_named_as_the_reason(location: RecordFolder, tmp_path: Path):
    loaded = TaskRecords.load(location).merged([record("a", tmp_path / "tasks/a")])
    assert loaded.status(tmp_path / "tasks/a", "local", "k").state is ValidationState.OTHER_ASSETS


def test_a_task_listed_by_hand_stays_quarantined_after_a_change(
    location: RecordFolder, tmp_path: Path
):
    task = tmp_path / "tasks/a"
    TaskRecords.add(location, [record("a", task, reason="no curl")])
    with (location.folder / "quarantine.txt").open("a") as file:
        file.write("a\n")
    (task / "instruction.md").write_text("Do something else.\n")
    assert TaskRecords.load(location).status(task, "local").state is ValidationState.QUARANTINED


def test_records_added_concurrently_are_all_stored(location: RecordFolder, tmp_path: Path):
    names = [f"t{number}" for number in range(24)]
    made = [record(name, tmp_path / "tasks/a") for name in names]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: TaskRecords.add(location, [one]), made))
    assert sorted(task for task, _ in TaskRecords.load(location).records) == sorted(names)


def test_a_file_of_another_format_is_rejected(location: RecordFolder):
    location.folder.mkdir(parents=True)
    (location.folder / "validation.json").write_text('{"format": 2, "tasks": []}')
    with pytest.raises(UsageError, match="format 2, not 1"):
        TaskRecords.load(location)
