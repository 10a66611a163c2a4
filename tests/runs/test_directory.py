"""The run directory: nothing overwritten, what finished kept, one clear error."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from plimsoll.core.endings import Ending
from plimsoll.core.errors import UsageError
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.results import Row, Tally

NOW = datetime(2031, 2, 3, 4, 5, 6)


def a_row(attempt: int = 1) -> Row:
    return Row(
        task="a",
        attempt=attempt,
        verdict="graded",
        reward=1.0,
        rewards={},
        ending=Ending.SUBMITTED,
        cause=None,
        reason=None,
        seconds=0.5,
    )


def test_a_run_is_named_after_its_time_and_a_taken_name_gets_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    names = [RunDirectory.create(None, now=NOW).path.as_posix() for _ in range(3)]
    assert names == [f"runs/eval-20310203-040506{end}" for end in ("", "-2", "-3")]


def test_a_folder_that_holds_trials_is_refused(tmp_path: Path):
    first = RunDirectory.create(tmp_path / "out", now=NOW)
    first.trial("a", 1).mkdir()
    with pytest.raises(UsageError, match="already holds trials"):
        RunDirectory.create(tmp_path / "out", now=NOW)


def test_a_folder_without_trials_is_used_as_it_is(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    RunDirectory.create(tmp_path, now=NOW)
    again = RunDirectory.create(tmp_path, now=NOW)
    assert again.path == tmp_path
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_each_result_is_on_disk_as_soon_as_it_is_known(directory: RunDirectory):
    for attempt in (1, 2):
        directory.append(a_row(attempt))
        lines = directory.results.read_text().splitlines()
        assert [json.loads(line)["attempt"] for line in lines] == list(range(1, attempt + 1))


def test_the_summary_is_whole_or_not_there(directory: RunDirectory):
    assert not directory.summary.exists()
    tally = Tally([a_row()])
    directory.finish(tally.summary(tasks=1, seconds=1.0))
    assert json.loads(directory.summary.read_text())["mean_reward"] == 1.0
    assert list(directory.path.glob("*.part")) == []


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file.*Not a directory.*--out"):
        RunDirectory.create(tmp_path / "file" / "out", now=NOW)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_clear_error(directory: RunDirectory):
    directory.results.unlink()
    directory.results.symlink_to("/dev/full")
    with pytest.raises(UsageError, match=r"No space left on device; free some space"):
        directory.append(a_row())
