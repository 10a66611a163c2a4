"""`plimsoll ledger`: the ledger of a run, during and after it, and its check."""

import json
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from plimsoll.core.endings import Ending
from plimsoll.core.ids import Owner
from plimsoll.ledger.checkpoints import FOLDER, Checkpoints
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.journal.location import FILE
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.rules.batching import Batch
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Cause, Graded, Void

SETTINGS = Settings(batch_groups=2, max_running=16, depth=1, max_staleness=2, group_size=2)
ORDER = DataOrder(["fix-add", "fix-sub", "fix-mul"], seed=1)


async def train(ledger: Ledger, steps: int) -> None:
    for _ in range(steps):
        await ledger.admit(ORDER)
        for ticket in ledger.accounts.waiting():
            await ledger.start(ticket, "w")
            await ledger.finish(ticket, Graded(0.5, Ending.SUBMITTED), 2.0)
        choice = ledger.choose()
        assert isinstance(choice, Batch)
        await ledger.consume(choice)
        await ledger.commit()
    await ledger.admit(ORDER)
    await ledger.void(ledger.accounts.waiting()[0], Void(Cause.SANDBOX, "gone"), 1.0)
    await ledger.finish("nobody/0.0", Graded(1.0, Ending.SUBMITTED), 1.0)


def open_ledger(folder: Path) -> Ledger:
    return Ledger(folder, SETTINGS, Owner("here", 1, ""), time.time)


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    """A run that has made 5 steps and ended."""
    async with open_ledger(tmp_path) as ledger:
        await train(ledger, 5)
        kept = Checkpoints(tmp_path / FOLDER)
        lineages = ledger.books.lineages
        kept.write(ledger.books.version, ledger.position, _save, lineages)
    return tmp_path


def _save(folder: Path) -> None:
    (folder / "weights.bin").write_text("weights")


def change(run: Path, sql: str) -> None:
    other = sqlite3.connect(run / FILE)
    with other:
        other.execute(sql)
    other.close()


def test_ledger_shows_the_state_of_the_run(plimsoll, run: Path):
    done = plimsoll("ledger", str(run))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert f"ledger of {run} · version 5" in lines[0]
    assert "groups      admitted 14 = running 2 + buffered 2 + training 0" in done.stdout
    assert "settings    B 2 · C 16 · τ 1 · η 2" in done.stdout
    assert "rollouts: sandbox 1" in done.stdout
    assert "ignored     Finished 1" in done.stdout
    assert "checkpoint  v0-00000005 · version 5" in done.stdout
    assert any(line.startswith("fix-add ") for line in lines)


def test_json_has_every_figure(plimsoll, run: Path):
    done = plimsoll("ledger", str(run), "--json")
    report = json.loads(done.stdout)
    groups = report["groups"]
    assert groups.pop("admitted") == sum(groups.values()) == 14
    assert (report["version"], report["lineage"], report["rollbacks"]) == ("5", 0, 0)
    assert report["settings"]["max_staleness"] == 2
    assert sum(report["tally"]["head_ages"].values()) == 20
    assert sum(report["tally"]["token_ages"].values()) == 20
    assert report["duration_bias"] == pytest.approx(2.0 / ((24 * 2.0 + 1.0) / 25))
    assert sum(task["trained"] for task in report["tasks"]) == 10
    assert {task["task"] for task in report["tasks"]} == {"fix-add", "fix-sub", "fix-mul"}
    assert [made["version"] for made in report["checkpoints"]] == ["5"]
    assert (report["checked"], report["problems"], report["history"]) == (False, [], None)


def test_the_ledger_file_can_be_named_directly(plimsoll, run: Path):
    assert plimsoll("ledger", str(run / FILE), "--json").returncode == 0


def test_the_groups_of_one_task_are_listed(plimsoll, run: Path):
    report = json.loads(plimsoll("ledger", str(run), "--task", "fix-add", "--json").stdout)
    history = report["history"]
    assert history[0]["rewards"] == [0.5, 0.5]
    assert history[0]["outcome"] == "trained: 1"
    assert {group["outcome"].partition(":")[0] for group in history} >= {"trained"}
    assert "trained: 1" in plimsoll("ledger", str(run), "--task", "fix-add").stdout
    done = plimsoll("ledger", str(run), "--task", "fix-nothing")
    assert done.returncode == 2
    assert "no group of the task 'fix-nothing' was ever admitted" in done.stderr


async def test_the_ledger_of_a_live_run_is_readable(plimsoll, tmp_path: Path):
    async with open_ledger(tmp_path) as ledger:
        await train(ledger, 3)
        done = plimsoll("ledger", str(tmp_path), "--check", "--json")
        assert json.loads(done.stdout)["version"] == "3"
        assert done.returncode == 0
        await ledger.void(ledger.accounts.waiting()[0], Void(Cause.POLICY, "gone"))
        report = json.loads(plimsoll("ledger", str(tmp_path), "--json").stdout)
        assert report["tally"]["tickets_by_cause"] == {"policy": 1, "sandbox": 1}


def test_a_sound_ledger_passes_the_check(plimsoll, run: Path):
    before = (run / FILE).read_bytes()
    done = plimsoll("ledger", str(run), "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing lost, nothing twice, nothing too old" in done.stdout
    assert (run / FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM events WHERE seq = 9", "event 9 is missing"),
        ("UPDATE events SET data = zeroblob(8) WHERE seq = 9", "event 9 does not match its digest"),
        ("UPDATE snapshots SET books = zeroblob(8)", "the snapshot after event"),
    ],
)
def test_a_damaged_ledger_fails_the_check(plimsoll, run: Path, sql: str, said: str):
    change(run, sql)
    done = plimsoll("ledger", str(run), "--check")
    assert done.returncode == 1
    assert said in done.stdout
    report = json.loads(plimsoll("ledger", str(run), "--check", "--json").stdout)
    assert report["checked"] and any(said in problem for problem in report["problems"])


def test_a_snapshot_that_contradicts_the_events_fails_the_check(plimsoll, run: Path):
    from plimsoll.ledger.journal import snapshot
    from plimsoll.ledger.journal.journal import Journal

    journal = Journal.open(run / FILE, writable=True)
    kept = journal.snapshot()
    assert kept is not None
    books = snapshot.load(kept.books)
    books.tally.consumed += 1
    journal.keep_snapshot(snapshot.dump(books))
    journal.close()
    done = plimsoll("ledger", str(run), "--check")
    assert done.returncode == 1
    assert "does not match the events" in done.stdout


def test_a_checkpoint_that_was_changed_fails_the_check(plimsoll, run: Path):
    [weights] = (run / FOLDER).glob("*/weights.bin")
    weights.write_text("other")
    done = plimsoll("ledger", str(run), "--check")
    assert done.returncode == 1
    assert "v0-00000005: weights.bin is missing or does not match its digest" in done.stdout


def test_a_torn_file_fails_the_check_and_is_bad_usage_without_check(plimsoll, run: Path):
    whole = (run / FILE).read_bytes()
    (run / FILE).write_bytes(whole[: len(whole) // 2])
    checked = plimsoll("ledger", str(run), "--check")
    assert checked.returncode == 1
    assert "its end is missing" in checked.stdout
    assert plimsoll("ledger", str(run)).returncode == 2
    assert (run / FILE).read_bytes() == whole[: len(whole) // 2]


def test_without_a_ledger_the_message_says_which_path_to_name(plimsoll, tmp_path: Path):
    done = plimsoll("ledger", str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path} holds no ledger.db: name the directory of a run" in done.stderr
    assert plimsoll("ledger", str(tmp_path / "none")).returncode == 2
    (tmp_path / "letter").write_text("dear friend")
    assert "is not a ledger" in plimsoll("ledger", str(tmp_path / "letter")).stderr


def test_ledger_help_imports_no_heavy_library():
    import subprocess

    for name in ("ledger", "simulate"):
        code = (
            "import sys\nfrom plimsoll.cli.main import main\n"
            f"try:\n    main(['{name}', '--help'])\nexcept SystemExit:\n    pass\n"
            "assert not {'asyncio', 'msgspec', 'rich'} & set(sys.modules)\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
