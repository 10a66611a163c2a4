"""The examples get the same verdicts on every backend."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from plimsoll.tasks.loader import find_tasks, load_task

EXAMPLES = Path(__file__).parents[3] / "examples"
Start = Callable[..., Popen[str]]


def run(start: Start, *words: str) -> tuple[int, dict[str, dict[str, object]]]:
    """Run a command to its end. Returns its exit status, and its rows by task."""
    process = start(*words, "--concurrency", "4", "--json")
    out, err = process.communicate(timeout=110)
    assert out, err
    report = json.loads(out)
    return process.returncode, {
        row["task"]: row for row in report.get("results") or report["tasks"]
    }


def test_the_oracle_solves_every_sound_task(start: Start, where: tuple[str, ...]):
    status, rows = run(start, "eval", str(EXAMPLES / "tasks"), *where)
    assert {name: row["reward"] for name, row in rows.items()} == {
        path.name: 1.0 for path in find_tasks(EXAMPLES / "tasks")
    }, rows
    assert status == 0


def test_every_broken_task_is_void_for_its_cause(start: Start, where: tuple[str, ...]):
    words = ("eval", str(EXAMPLES / "broken"), "--keep-going", *where)
    status, rows = run(start, *words)
    expected = {
        path.name: load_task(path).config.metadata["expected_cause"]
        for path in find_tasks(EXAMPLES / "broken")
    }
    assert {name: row["cause"] for name, row in rows.items()} == expected
    assert status == 3


@pytest.mark.parametrize(("pattern", "status"), [("git-*", 0), ("*-reward*", 1)])
def test_sound_tasks_are_valid_and_broken_ones_are_not(
    start: Start, where: tuple[str, ...], tmp_path: Path, pattern: str, status: int
):
    folder = EXAMPLES / ("tasks" if status == 0 else "broken")
    words = ("validate", str(folder), "--task", pattern, "--out", str(tmp_path / "kept"), *where)
    ended, rows = run(start, *words)
    assert rows
    assert {row["ok"] for row in rows.values()} == {status == 0}
    assert ended == status
