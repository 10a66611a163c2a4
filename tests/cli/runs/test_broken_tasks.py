"""`plimsoll run` over tasks without validation, one of which cannot be graded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import Plimsoll, check_ledger, rows, write_run

from plimsoll.ledger.data_order import DataOrder
from plimsoll.trials.verdicts import CAUSES, Cause

WriteTask = Callable[..., Path]

TASKS = ["a", "b", "c", "d", "e"]
GROUP, REQUEUES = 4, 3


@pytest.mark.slow
def test_a_run_with_one_broken_task_completes_without_it(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    # The broken task runs first, before any result of the others.
    broken = DataOrder(TASKS).epoch(0)[0]
    for name in TASKS:
        write_task(name, **({"test": "true\n"} if name == broken else {}))
    write_run(tmp_path, group_size=GROUP, steps=6, requeues=REQUEUES)
    ended = plimsoll("run", "night.toml", "--out", "out", "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert (report["done"], report["steps"], report["breaker"]) == (True, 6, None)
    assert list(report["out"]) == [broken]
    assert "void 4 times; last: grader" in report["out"][broken]
    void = [row["task"] for row in rows(tmp_path / "out") if row["verdict"] == "void"]
    assert set(void) == {broken}
    assert len(void) <= (REQUEUES + 1) * GROUP * (CAUSES[Cause.GRADER].retries + 1)
    check_ledger(plimsoll, "out")
