"""Validation records: the conditions for a valid task, and those that invalidate a record."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plimsoll.core.errors import UsageError
from plimsoll.runs.breaker.admission import ValidationState
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
def place(make_tasks: MakeTasks, tmp_path: Path) -> RecordFolder:
    make_tasks("a", "b")
    return RecordFolder.of(tmp_path / "tasks")


def test_records_are_beside_the_tasks_and_never_inside_one(place: RecordFolder, tmp_path: Path):
    assert place.folder == tmp_path / "tasks/.plimsoll"
    assert RecordFolder.of(tmp_path / "tasks/a") == place
    assert place.key(tmp_path / "tasks/a") == "a"


def test_another_folder_does_not_change_task_names(tmp_path: Path, place: RecordFolder):
    given = RecordFolder.of(tmp_path / "tasks/a", tmp_path / "kept")
    assert given.folder == tmp_path / "kept"
    assert given.key(tmp_path / "tasks/a") == "a"


def test_the_current_folder_can_be_a_task(
    place: RecordFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path / "tasks/a")
    here = RecordFolder.of(Path())
    assert (here, here.key(Path())) == (place, "a")


def test_saved_records_can_be_loaded(place: RecordFolder, tmp_path: Path):
    tasks = tmp_path / "tasks"
    records = [record("a", tasks / "a"), record("b", tasks / "b", reason="no curl")]
    TaskRecords.load(place).merged(records).save()
    known = TaskRecords.load(place)
    assert known.standing(tasks / "a", "local").known is ValidationState.VALID
    bad = known.standing(tasks / "b", "local")
    assert (bad.known, bad.reason) == (ValidationState.QUARANTINED, "no curl")
    assert known.standing(tasks / "a", "docker").known is ValidationState.UNKNOWN
    assert (place.folder / "quarantine.txt").read_text() == "b\tlocal\tno curl\n"
    assert sorted(path.name for path in place.folder.iterdir()) == [
        "quarantine.txt",
        "validation.json",
    ]


def test_a_changed_task_is_neither_validated_nor_quarantined(
    place: RecordFolder, tmp_path: Path
):
    tasks = tmp_path / "tasks"
    records = [record("a", tasks / "a"), record("b", tasks / "b", reason="no curl")]
    known = TaskRecords.load(place).merged(records)
    for name in ("a", "b"):
        (tasks / name / "instruction.md").write_text("Do something else.\n")
        assert known.standing(tasks / name, "local").known is ValidationState.CHANGED


def test_a_task_listed_by_hand_is_quarantined_despite_its_record(place: RecordFolder, tmp_path: Path):
    TaskRecords.load(place).merged([record("a", tmp_path / "tasks/a")]).save()
    (place.folder / "quarantine.txt").write_text("a\nb\n")
    known = TaskRecords.load(place)
    for name in ("a", "b"):
        assert (
            known.standing(tmp_path / "tasks" / name, "local").known is ValidationState.QUARANTINED
        )


def test_validating_again_replaces_only_the_selected_tasks(
    place: RecordFolder, tmp_path: Path
):
    tasks = tmp_path / "tasks"
    first = [record("a", tasks / "a", reason="x"), record("b", tasks / "b", reason="y")]
    TaskRecords.load(place).merged(first).save()
    TaskRecords.load(place).merged([record("a", tasks / "a")]).save()
    known = TaskRecords.load(place)
    assert known.standing(tasks / "a", "local").known is ValidationState.VALID
    assert known.standing(tasks / "b", "local").known is ValidationState.QUARANTINED
    assert len(known.quarantine.lines) == 1


def test_an_invalid_records_file_is_an_error(place: RecordFolder):
    place.folder.mkdir()
    (place.folder / "validation.json").write_text('{"tasks": 3}')
    with pytest.raises(UsageError, match="not a validation"):
        TaskRecords.load(place)


def test_an_unwritable_folder_is_an_error_with_a_remedy(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another folder with --out DIR"):
        RecordFolder(tmp_path, tmp_path / "file/kept").check_writable()


def test_checking_writability_leaves_no_files(place: RecordFolder):
    place.check_writable()
    assert list(place.folder.iterdir()) == []


def test_other_assets_are_named_as_the_reason(place: RecordFolder, tmp_path: Path):
    known = TaskRecords.load(place).merged([record("a", tmp_path / "tasks/a")])
    assert known.standing(tmp_path / "tasks/a", "local", "k").known is ValidationState.OTHER_ASSETS


def test_a_task_listed_by_hand_stays_quarantined_after_a_change(place: RecordFolder, tmp_path: Path):
    task = tmp_path / "tasks/a"
    TaskRecords.add(place, [record("a", task, reason="no curl")])
    with (place.folder / "quarantine.txt").open("a") as file:
        file.write("a\n")
    (task / "instruction.md").write_text("Do something else.\n")
    assert TaskRecords.load(place).standing(task, "local").known is ValidationState.QUARANTINED


def test_records_added_concurrently_are_all_stored(place: RecordFolder, tmp_path: Path):
    names = [f"t{number}" for number in range(24)]
    made = [record(name, tmp_path / "tasks/a") for name in names]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: TaskRecords.add(place, [one]), made))
    assert sorted(task for task, _ in TaskRecords.load(place).records) == sorted(names)


def test_a_file_of_another_format_is_rejected(place: RecordFolder):
    place.folder.mkdir(parents=True)
    (place.folder / "validation.json").write_text('{"format": 2, "tasks": []}')
    with pytest.raises(UsageError, match="format 2, not 1"):
        TaskRecords.load(place)
