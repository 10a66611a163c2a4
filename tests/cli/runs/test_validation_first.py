"""`[run] validate`: tasks without a current validation are validated when a run begins."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import Plimsoll, write_run

WriteTask = Callable[..., Path]

HONEST = """#!/bin/bash
[ -f /app/done ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
SOLVE = "mkdir -p /app && touch /app/done"


@pytest.fixture
def tasks(write_task: WriteTask, tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        write_task(name, test=HONEST, solve=SOLVE)
    return tmp_path / "tasks"


def validated(run: Path) -> int:
    """The number of trials of the validation."""
    files = run.glob("validation/*/results.jsonl")
    return sum(len(file.read_text().splitlines()) for file in files)


def test_failed_tasks_are_left_out_and_named_and_no_task_is_validated_twice(
    tasks: Path, write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("bad", test="true\n", solve=SOLVE)
    write_task("../heldout/a", test=HONEST, solve=SOLVE)
    write_run(tmp_path, validate=True)
    with (tmp_path / "night.toml").open("a") as file:
        file.write('[evaluation]\ntasks = "heldout"\n')
    first = plimsoll("run", "night.toml", "--out", "one", "--json")
    assert first.returncode == 0, first.stderr
    summary = json.loads(first.stdout)
    assert summary["quarantined"] == ["bad"]
    assert "the oracle is void: grader" in summary["out"]["bad"]
    assert "plimsoll lint, rule" in summary["out"]["bad"]
    assert "4 loaded · 3 validated" in first.stderr
    assert "held-out    1 loaded · 1 validated" in first.stderr
    assert validated(tmp_path / "one") == 2 * 5 + 2, "the two void trials are tried again"
    tried = {path.name.partition(".")[0] for path in (tmp_path / "one/trials").iterdir()}
    assert tried <= {"a", "b", "c"}
    # Other runs and `plimsoll eval` use the same records.
    second = plimsoll("run", "night.toml", "--out", "two", "--json")
    assert json.loads(second.stdout)["quarantined"] == ["bad"]
    assert validated(tmp_path / "two") == 0
    assert plimsoll("eval", "tasks", "--validated", "--agent", "nop").returncode == 2
    steps = [json.loads(line) for line in (tmp_path / "two/steps.jsonl").read_text().splitlines()]
    assert all(0 < step["sandbox_seconds"] < 30 and step["seconds"]["wait"] > 0 for step in steps)


@pytest.mark.slow
def test_a_changed_task_is_validated_again(tasks: Path, plimsoll: Plimsoll, tmp_path: Path):
    write_run(tmp_path, validate=True, steps=1)
    assert plimsoll("run", "night.toml", "--out", "run").returncode == 0
    (tasks / "b/instruction.md").write_text("Do it well.\n")
    config = (tmp_path / "run/config.toml").read_text()
    (tmp_path / "run/config.toml").write_text(config.replace("steps = 1", "steps = 2"))
    assert plimsoll("resume", "run").returncode == 0
    assert validated(tmp_path / "run") == 2 * 3 + 2


@pytest.mark.slow
def test_if_most_tasks_fail_validation_every_start_is_refused(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("good", test=HONEST, solve=SOLVE)
    for name in ("bad-1", "bad-2"):
        write_task(name, test=HONEST, solve="true")
    write_run(tmp_path, validate=True)
    for out in ("one", "two"):
        ended = plimsoll("run", "night.toml", "--out", out)
        assert ended.returncode == 2
        assert "nothing was run: 2 of 3 tasks" in ended.stderr
        assert "bad-1: quarantined: the oracle is graded 0" in ended.stderr
        assert not (tmp_path / out / "ledger.db").exists()
    # Without `validate` a run starts, and leaves out the quarantined tasks.
    write_run(tmp_path)
    assert plimsoll("run", "night.toml", "--out", "three").returncode == 0
