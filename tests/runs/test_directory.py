"""The run directory: nothing is overwritten, finished results are kept, errors are clear."""

import json
import re
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from rollout_runs import MakeConfig

from plimsoll.core.endings import Ending
from plimsoll.core.errors import UsageError, WorkerError
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.results import Row, Tally
from plimsoll.runs.rollouts import Rollouts

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


def test_paths_inside_the_run_are_relative_and_survive_a_move(tmp_path: Path):
    before, now = RunDirectory(tmp_path / "before"), RunDirectory(tmp_path / "now")
    (now.path / "trajectories").mkdir(parents=True)
    file = now.path / "trajectories/g_0.jsonl.zst"
    file.touch()
    written = before.inside(before.path / "trajectories/g_0.jsonl.zst")
    assert written == "trajectories/g_0.jsonl.zst"
    assert now.stored(written) == str(file)
    # The format of earlier versions.
    assert now.stored(str(before.path / written)) == str(file)
    elsewhere = tmp_path / "far/night-1/trajectories/g_0.jsonl.zst"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    for whole in (str(elsewhere), f"file://{elsewhere}", "s3://bucket/night-1/g_0.jsonl.zst", ""):
        assert now.stored(whole) == whole


def test_a_run_is_named_after_its_time_and_a_taken_name_gets_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    names = [RunDirectory.create(None, now=NOW).path.as_posix() for _ in range(3)]
    assert names == [f"runs/eval-20310203-040506{end}" for end in ("", "-2", "-3")]


def test_a_folder_with_trials_is_rejected(tmp_path: Path):
    first = RunDirectory.create(tmp_path / "out", now=NOW)
    first.trial("a", 1).mkdir()
    with pytest.raises(UsageError, match="already holds trials"):
        RunDirectory.create(tmp_path / "out", now=NOW)


def test_a_folder_without_trials_is_accepted(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    RunDirectory.create(tmp_path, now=NOW)
    again = RunDirectory.create(tmp_path, now=NOW)
    assert again.path == tmp_path
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "name",
    [
        *("config.toml", "request.json", "results.jsonl", "summary.json", "steps.jsonl"),
        *("ledger.db", "checkpoints/v"),
    ],
)
def test_a_folder_with_foreign_files_of_reserved_names_is_rejected_unchanged(
    tmp_path: Path, name: str
):
    mine = tmp_path / "exp" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(UsageError, match=f"exp holds {name.partition('/')[0]}.*--out"):
        RunDirectory.create(tmp_path / "exp", now=NOW)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    assert not (tmp_path / "exp/trials").exists()
    assert mine.read_text() == "mine"


async def test_discarding_a_run_keeps_an_existing_config(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = make_config("coin-a", steps=1)
    monkeypatch.setenv("PLIMSOLL_STAND_IN", "nowhere:named")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp/config.toml").write_text("# mine")
    with pytest.raises(UsageError, match=r"exp holds config\.toml"):
        async with Rollouts(config, out=tmp_path / "exp"):
            pass
    assert (tmp_path / "exp/config.toml").read_text() == "# mine"
    # A folder that existed before stays, and can be used.
    (tmp_path / "exp/config.toml").unlink()
    with pytest.raises(WorkerError, match="nowhere:named"):
        async with Rollouts(config, out=tmp_path / "exp"):
            pass
    assert list((tmp_path / "exp").iterdir()) == []


def test_files_of_a_killed_start_do_not_block_the_next(tmp_path: Path):
    killed = RunDirectory.create(tmp_path / "run", now=NOW)
    for settings in (killed.config, killed.request):
        settings.write_text("its own")
    (tmp_path / "run/ledger.lock").touch()
    (tmp_path / "run/ledger.txt").write_text("mine")
    again = RunDirectory.create(tmp_path / "run", now=NOW)
    again.discard()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["ledger.txt"]


def test_the_storage_name_of_a_run_is_stable_and_unique(tmp_path: Path):
    first, second = (RunDirectory.create(tmp_path / f / "night 1", now=NOW) for f in ("a", "b"))
    name = first.stored_as()
    assert re.fullmatch(r"night_1-[0-9a-f]{10}", name)
    assert RunDirectory(first.path).stored_as() == name
    assert second.stored_as() != name
    # A copy is independent from here on.
    shutil.copytree(first.path, tmp_path / "copy")
    assert RunDirectory(tmp_path / "copy").stored_as() != name
    assert RunDirectory(first.path).stored_as() == name


async def test_each_result_is_in_the_file_when_append_returns(directory: RunDirectory):
    for attempt in (1, 2):
        await directory.append(a_row(attempt))
        lines = directory.results.read_text().splitlines()
        assert [json.loads(line)["attempt"] for line in lines] == list(range(1, attempt + 1))


def test_the_summary_is_written_atomically(directory: RunDirectory):
    assert not directory.summary.exists()
    tally = Tally([a_row()])
    directory.finish(tally.summary(tasks=1, seconds=1.0))
    assert json.loads(directory.summary.read_text())["mean_reward"] == 1.0
    assert list(directory.path.glob("*.part")) == []


def test_an_unwritable_folder_is_one_clear_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"Not a directory; choose another folder with --out"):
        RunDirectory.create(tmp_path / "file" / "out", now=NOW)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_is_one_clear_error_and_stops_further_writes(
    directory: RunDirectory,
):
    directory.results.unlink()
    directory.results.symlink_to("/dev/full")
    with pytest.raises(UsageError, match=r"No space left on device; free some space"):
        await directory.append(a_row())
    with pytest.raises(UsageError, match=r"No space left on device; free some space"):
        await directory.append_canary(a_row())
    assert not directory.canaries.exists()
