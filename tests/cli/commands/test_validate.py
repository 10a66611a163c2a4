"""`plimsoll validate`, and runs that require its results."""

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess, Popen

import pytest

from helpers import marked

pytestmark = pytest.mark.usefixtures("sandboxes")

WriteTask = Callable[..., Path]
Plimsoll = Callable[..., CompletedProcess[str]]

BROKEN = Path(__file__).parents[3] / "examples/broken"
HONEST = """#!/bin/bash
if [ -e /done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLVE = "touch /done"
FLAKY = """#!/bin/bash
if [ -e /done ]; then echo $((RANDOM % 2)); else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.fixture
def honest(write_task: WriteTask) -> WriteTask:
    """Writes a task that the oracle solves and nop does not."""

    def write(name: str, *, test: str = HONEST, solve: str = SOLVE, toml: str = "") -> Path:
        return write_task(name, test=test, solve=solve, toml=toml)

    return write


def records(folder: Path) -> dict[str, dict[str, object]]:
    report = json.loads((folder / "validation.json").read_text())
    return {record["task"]: record for record in report["tasks"]}


def test_sound_tasks_are_valid_and_exit_0(honest: WriteTask, plimsoll: Plimsoll, tmp_path: Path):
    honest("a")
    honest("b", toml="[metadata]\nreward_range = [0, 2]\n", test=HONEST.replace("echo 1", "echo 2"))
    ended = plimsoll("validate", "tasks", "--backend", "local", "--repeat", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].endswith("validate with oracle and nop · 2 tasks × 2")
    assert [line.split() for line in lines[1:4]] == [
        ["task", "oracle", "nop", "maximum"],
        ["a", "1.00", "0.00", "1.00", "valid"],
        ["b", "2.00", "0.00", "2.00", "valid"],
    ]
    kept = records(tmp_path / "tasks/.plimsoll")
    assert [kept[name]["ok"] for name in ("a", "b")] == [True, True]
    assert len(kept["a"]["oracle"]) == len(kept["a"]["nop"]) == 2  # type: ignore[arg-type]
    assert (tmp_path / "tasks/.plimsoll/quarantine.txt").read_text() == ""
    assert "wrote: tasks/.plimsoll/validation.json" in ended.stdout
    assert lines[-1] == "next: plimsoll eval tasks --backend local --validated"


def test_each_fault_is_quarantined_with_its_reason(
    honest: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    honest("ok")
    honest("for-nothing", test="#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n")
    honest("half", test=HONEST.replace("echo 1", "echo 0.5"))
    honest("no-solution", solve="exit 3")
    honest("invalid", toml='[agent]\ntimeout_sec = "soon"\n')
    shutil.copytree(BROKEN / "curl-pipe-sh-then-zero", tmp_path / "tasks/fetches")
    ended = plimsoll("validate", "tasks", "--json")
    assert ended.returncode == 1, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["tasks"], report["valid"], report["quarantined"]) == (6, 1, 5)
    reasons = {record["task"]: record["reason"] for record in report["results"]}
    assert reasons["ok"] is None
    assert reasons["for-nothing"] == "nop is graded 1: the task gives its maximum for nothing"
    assert reasons["half"] == "the oracle is graded 0.5, and the task's maximum is 1"
    assert reasons["no-solution"].startswith("the oracle is void: task: solution/solve.sh failed")
    assert reasons["invalid"].startswith("not a valid task: ")
    assert reasons["fetches"].startswith("the oracle is void: grader: the grader could not fetch")
    listed = (tmp_path / "tasks/.plimsoll/quarantine.txt").read_text().splitlines()
    assert {line.split("\t")[0] for line in listed} == set(reasons) - {"ok"}
    assert "plimsoll stage tasks --to DIR" in ended.stderr
    assert "trials/fetches.oracle.1" in ended.stderr


def test_a_flaky_task_is_named_as_such(honest: WriteTask, plimsoll: Plimsoll):
    honest("coin", test=FLAKY)
    ended = plimsoll("validate", "tasks", "--repeat", "16")
    assert ended.returncode == 1, ended.stderr
    assert "quarantined, flaky" in ended.stdout
    assert "flaky, outcomes differ (1):" in ended.stdout


@pytest.mark.slow
def test_only_records_of_selected_tasks_are_replaced(
    honest: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    honest("a")
    honest("b", test="#!/bin/bash\ntrue\n")
    assert plimsoll("validate", "tasks").returncode == 1
    (tmp_path / "tasks/b/tests/test.sh").write_text(HONEST)
    assert plimsoll("validate", "tasks", "--task", "b").returncode == 0
    assert {name: one["ok"] for name, one in records(tmp_path / "tasks/.plimsoll").items()} == {
        "a": True,
        "b": True,
    }
    # The record of a single task is stored with those of its folder of tasks.
    assert plimsoll("validate", "tasks/a").returncode == 0
    assert not (tmp_path / "tasks/a/.plimsoll").exists()
    assert plimsoll("eval", "tasks", "--validated").returncode == 0


def test_an_unwritable_record_is_refused_before_any_trial(
    honest: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    honest("a")
    (tmp_path / "tasks/.plimsoll").write_text("a file where a folder should be")
    ended = plimsoll("validate", "tasks")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--out DIR" in ended.stderr
    assert not (tmp_path / "runs").exists()
    assert plimsoll("validate", "tasks", "--out", "kept").returncode == 0
    assert records(tmp_path / "kept")["a"]["ok"] is True
    ended = plimsoll("eval", "tasks", "--validated", "--validation", "kept")
    assert ended.returncode == 0, ended.stderr


def test_a_run_refuses_unvalidated_tasks_with_a_remedy(
    honest: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    honest("a")
    refused = plimsoll("eval", "tasks", "--validated")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "nothing was run: 1 of 1 tasks are not validated on the backend local" in refused.stderr
    assert "  a: never validated" in refused.stderr
    assert "plimsoll validate tasks --backend local" in refused.stderr
    assert not (tmp_path / "runs").exists()
    assert plimsoll("eval", "tasks").returncode == 0  # allowed without --validated
    assert plimsoll("validate", "tasks").returncode == 0
    assert plimsoll("eval", "tasks", "--validated").returncode == 0
    (tmp_path / "tasks/a/solution/solve.sh").write_text("#!/bin/bash\ntouch /done # better\n")
    changed = plimsoll("eval", "tasks", "--validated")
    assert changed.returncode == 2
    assert "  a: changed since it was validated" in changed.stderr


def test_quarantined_tasks_are_refused_or_left_out_and_named(honest: WriteTask, plimsoll: Plimsoll):
    honest("good")
    honest("bad", test="#!/bin/bash\ntrue\n")
    assert plimsoll("validate", "tasks").returncode == 1
    refused = plimsoll("eval", "tasks", "--validated")
    assert refused.returncode == 2
    assert "  bad: quarantined: the oracle is void: grader" in refused.stderr
    ended = plimsoll("eval", "tasks", "--validated", "--skip-quarantined")
    assert ended.returncode == 0, ended.stderr
    assert "agent oracle · 1 task × 1" in ended.stdout
    assert "not run, quarantined (1):\n  bad  quarantined: the oracle is void" in ended.stdout


@pytest.mark.parametrize(("how", "workers"), [("interrupted", ()), ("stopped", ("--workers", "1"))])
def test_an_interrupted_or_stopped_validation_keeps_finished_records(
    honest: WriteTask,
    start: Callable[..., Popen[str]],
    plimsoll_here: Plimsoll,
    tmp_path: Path,
    mark: str,
    how: str,
    workers: tuple[str, ...],
):
    honest("a")
    honest("long", solve="sleep 60")
    process = start("validate", "tasks", "--concurrency", "2", "--json", *workers)
    deadline = time.monotonic() + 120
    while sum(f.read_text().count("\n") for f in tmp_path.glob("runs/*/results.jsonl")) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (run,) = (tmp_path / "runs").iterdir()
    if how == "stopped":
        assert "worker-1" in plimsoll_here("status", run.name).stdout
        stopped = plimsoll_here("stop", run.name)
        assert stopped.returncode == 0, stopped.stderr
        assert f"has ended · continue: plimsoll resume runs/{run.name}" in stopped.stdout
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    ended_by = signal.SIGTERM if how == "stopped" else signal.SIGINT
    assert process.returncode == 128 + ended_by, err
    assert marked(mark) == {}
    assert json.loads(out)["not_finished"] == ["long"]
    assert "interrupted: 1 of 2 tasks were not finished" in err
    assert "next: plimsoll validate tasks --backend local" in err
    assert list(records(tmp_path / "tasks/.plimsoll")) == ["a"]


def test_bad_usage_is_one_line_and_exits_2(honest: WriteTask, plimsoll: Plimsoll):
    honest("a")
    for args in (
        ("nowhere",),
        ("tasks", "--backend", "cloud"),
        ("tasks", "--repeat", "0"),
        ("tasks", "--task", "z*"),
    ):
        ended = plimsoll("validate", *args)
        assert (ended.returncode, ended.stdout) == (2, ""), args
        assert ended.stderr.startswith("plimsoll: "), args


@pytest.mark.slow
def test_the_suggested_commands_work(honest: WriteTask, plimsoll: Plimsoll, tmp_path: Path):
    honest("a")
    (tmp_path / "tasks/broken").mkdir()
    (tmp_path / "tasks/broken/task.toml").write_text("=")
    assert plimsoll("stage", "tasks/a", "--to", "assets").returncode == 0
    assert plimsoll("validate", "tasks/a").returncode == 0
    refused = plimsoll("eval", "tasks/a", "--validated", "--assets", "assets")
    assert "  a: validated with other assets, or with none" in refused.stderr
    assert "plimsoll validate tasks/a --backend local --assets assets\n" in refused.stderr

    ended = plimsoll("validate", "tasks", "--assets", "assets")
    last = ended.stdout.splitlines()[-1]
    words = "tasks --backend local --assets assets --validated --skip-invalid"
    assert last == f"next: plimsoll eval {words}"
    assert plimsoll("eval", *words.split()).returncode == 0


@pytest.mark.slow
def test_a_run_over_quarantined_tasks_prints_a_warning(honest: WriteTask, plimsoll: Plimsoll):
    honest("good")
    honest("bad", solve="exit 1")
    assert "quarantined" not in plimsoll("eval", "tasks").stderr
    assert plimsoll("validate", "tasks").returncode == 1
    assert "quarantined tasks: 1; --skip-quarantined" in plimsoll("eval", "tasks").stderr
    left = plimsoll("eval", "tasks", "--skip-quarantined")
    assert left.returncode == 0
    assert "1 quarantined task, named at the end" in left.stderr
