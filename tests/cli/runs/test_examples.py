"""The files of examples/ work from a fresh clone."""

import json
from pathlib import Path

import pytest
from run_files import Plimsoll, Start, check_ledger, rows

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def _session_home(home: Path, sandboxes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_HOME", str(home))


@pytest.mark.slow
def test_the_example_run_completes(plimsoll: Plimsoll, tmp_path: Path):
    ended = plimsoll("run", str(EXAMPLES / "rollout.toml"), "--out", "run", "--json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["done"], report["steps"], report["problems"]) == (True, 6, [])
    assert 0 < report["reward"] < 1, "the script solves some of the tasks"
    check_ledger(plimsoll, "run")


@pytest.mark.slow
def test_the_example_trainer_completes(plimsoll: Plimsoll, start: Start, tmp_path: Path):
    trainer = start("run", python=(str(EXAMPLES / "rollouts.py"),))
    out, err = trainer.communicate(timeout=200)
    assert trainer.returncode == 0, err
    *steps, last = out.splitlines()
    assert [line.partition(":")[0] for line in steps] == [f"step {n}" for n in range(1, 7)]
    assert int(steps[-1].split()[-4]) > 0, "nothing was generated"
    assert last == "all steps are done: run"
    assert all(row["trajectory"] for row in rows(tmp_path / "run") if row["reward"] is not None)
    check_ledger(plimsoll, "run")
