"""`plimsoll eval` and `validate` that are killed or stopped, and resumed: real sandboxes."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_files import Plimsoll, Start, rows, wait_for

from mounts import resize, tmpfs
from plimsoll.ledger.events import Finished
from plimsoll.ledger.journal.journal import Journal
from ray_nodes import ray_cluster

WriteTask = Callable[..., Path]


def finished(run: Path) -> list[str]:
    """The graded tickets in the ledger."""
    journal = Journal.open(run / "ledger.db")
    try:
        return [event.ticket for _, event in journal.read() if isinstance(event, Finished)]
    finally:
        journal.close()


def slow_tasks(write_task: WriteTask, number: int) -> None:
    for index in range(number):
        write_task(f"t{index}", solve="sleep 0.4")


def started_run(tmp_path: Path) -> Path:
    """The only run directory below runs/, once there is one."""
    wait_for(lambda: (tmp_path / "runs").is_dir() and any((tmp_path / "runs").iterdir()))
    (run,) = (tmp_path / "runs").iterdir()
    return run


@pytest.fixture(
    params=["in process", pytest.param("two workers", marks=pytest.mark.slow), "ray"],
)
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The options for each kind of workers."""
    if request.param != "ray":
        yield ("--workers", "2") if request.param == "two workers" else ()
        return
    request.getfixturevalue("ray_part")
    with ray_cluster() as cluster:
        cluster.add_node(num_cpus=2)
        config = f'[workers.ray]\naddress = "{cluster.address}"\nresources = {{ CPU = 1 }}\n'
        (tmp_path / "plimsoll.toml").write_text(config)
        yield ("--workers", "2", "--engine", "ray")


def test_a_killed_eval_is_resumed_and_runs_no_finished_trial_again(
    write_task: WriteTask,
    start: Start,
    plimsoll: Plimsoll,
    tmp_path: Path,
    workers: tuple[str, ...],
):
    slow_tasks(write_task, 4)
    process = start("eval", "tasks", "--attempts", "2", "--concurrency", "2", *workers)
    run = started_run(tmp_path)
    wait_for(lambda: len(rows(run)) >= 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = finished(run)
    assert 2 <= len(before) < 8
    shown = plimsoll("status", run.name, "--json")
    assert json.loads(shown.stdout)["state"] == "killed"

    ended = plimsoll("resume", run.name, "--json")

    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["trials"], report["graded"], report["mean_reward"]) == (8, 8, 1.0)
    expected = [(f"t{index}", attempt) for index in range(4) for attempt in (1, 2)]
    assert [(row["task"], row["attempt"]) for row in report["results"]] == expected
    tickets = finished(run)
    assert tickets[: len(before)] == before
    groups = Counter(ticket.partition("/")[0] for ticket in tickets)
    assert set(groups.values()) == {1} and len(groups) == 8
    checked = plimsoll("ledger", run.name, "--check")
    assert checked.returncode == 0, checked.stdout


def test_a_killed_validate_is_resumed_and_records_every_task(
    write_task: WriteTask,
    start: Start,
    plimsoll: Plimsoll,
    plimsoll_here: Plimsoll,
    tmp_path: Path,
):
    graded = "#!/bin/bash\n[ -e /tmp/done ] && echo 1 > /logs/verifier/reward.txt || "
    graded += "echo 0 > /logs/verifier/reward.txt\n"
    for index in range(4):
        write_task(f"t{index}", solve="sleep 0.4; touch /tmp/done", test=graded)
    process = start("validate", "tasks", "--concurrency", "2")
    run = started_run(tmp_path)
    wait_for(lambda: len(rows(run)) >= 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = finished(run)
    assert len(before) < 8
    assert not (tmp_path / "tasks/.plimsoll/validation.json").exists()
    shown = plimsoll_here("status", run.name).stdout
    assert f"run runs/{run.name} · killed\n" in shown
    assert "/8 trials   mean " in shown

    ended = plimsoll("resume", run.name, "--json")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert (report["tasks"], report["valid"], report["not_finished"]) == (4, 4, [])
    groups = Counter(ticket.partition("/")[0] for ticket in finished(run))
    assert set(groups.values()) == {1} and len(groups) == 8
    assert len(json.loads((tmp_path / "tasks/.plimsoll/validation.json").read_text())["tasks"]) == 4
    assert plimsoll("ledger", run.name, "--check").returncode == 0


def test_a_stopped_eval_can_be_moved_and_resumed_and_has_no_results_for_cancelled_trials(
    write_task: WriteTask,
    start: Start,
    plimsoll: Plimsoll,
    plimsoll_here: Plimsoll,
    tmp_path: Path,
):
    quick = [write_task(f"t{index}") for index in range(2)]
    slow = [write_task(f"t{index}", solve="sleep 100") for index in range(2, 6)]
    process = start("eval", "tasks", "--concurrency", "2")
    run = started_run(tmp_path)
    wait_for(lambda: len(rows(run)) >= 2)
    live = json.loads(plimsoll("status", run.name, "--json").stdout)
    assert (live["kind"], live["total"]) == ("eval", 6)
    said = "progress    2/6 trials   mean 1.00   void 0   "
    wait_for(lambda: said in plimsoll_here("status", run.name).stdout, process)
    assert f" · running · pid {process.pid} on " in plimsoll_here("status", run.name).stdout
    stopped = plimsoll("stop", run.name)
    assert stopped.returncode == 0, stopped.stderr
    assert f"plimsoll resume runs/{run.name}" in stopped.stdout
    assert process.wait() == 128 + signal.SIGTERM
    assert {row["verdict"] for row in rows(run)} == {"graded"}
    done = len(rows(run))
    assert json.loads((run / "summary.json").read_text())["trials"] == done == len(quick)

    for task in slow:
        (task / "solution/solve.sh").write_text("#!/bin/bash\ntrue\n")
    moved = tmp_path / "attic/other"
    moved.parent.mkdir()
    run.rename(moved)
    ended = plimsoll("resume", "attic/other", "--json")

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["graded"] == 6
    assert [row["ticket"] for row in rows(moved)][:done] == finished(moved)[:done]
    assert len(finished(moved)) == 6
    assert plimsoll_here("ledger", "attic/other", "--check").returncode == 0
    assert "ended       all trials are done" in plimsoll_here("status", "attic/other").stdout
    assert not run.exists()


def test_resuming_a_finished_eval_runs_nothing_and_prints_the_same_result(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a")
    first = plimsoll("eval", "tasks", "--json", "--attempts", "2")
    (run,) = (tmp_path / "runs").iterdir()
    folders = sorted(path.name for path in (run / "trials").iterdir())

    again = plimsoll("resume", str(run), "--json")

    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["results"] == json.loads(first.stdout)["results"]
    assert sorted(path.name for path in (run / "trials").iterdir()) == folders
    assert len(finished(run)) == 2


def test_a_result_row_lost_in_a_power_cut_is_restored_from_the_ledger(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a")
    write_task("b")
    plimsoll("eval", "tasks", "--json", "--concurrency", "1")
    (run,) = (tmp_path / "runs").iterdir()
    lines = (run / "results.jsonl").read_text().splitlines(keepends=True)
    (run / "results.jsonl").write_text(lines[0])

    again = plimsoll("resume", str(run), "--json")

    report = json.loads(again.stdout)
    assert (report["trials"], report["graded"], report["mean_reward"]) == (2, 2, 1.0)
    assert len(finished(run)) == 2


def test_an_eval_with_changed_tasks_is_not_resumed(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("b")
    plimsoll("eval", "tasks")
    (run,) = (tmp_path / "runs").iterdir()
    write_task("a")
    again = plimsoll("resume", str(run))
    assert again.returncode == 2
    assert "cannot be resumed" in again.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 KB for run directories."""
    with tmpfs(tmp_path / "small", "400k") as folder:
        yield folder


@pytest.mark.slow
def test_a_full_disk_ends_with_the_command_to_continue_and_nothing_is_lost(
    write_task: WriteTask, plimsoll: Plimsoll, small_disk: Path
):
    for index in range(10):
        write_task(f"t{index}", solve="head -c 40000 /dev/urandom | base64")
    run = small_disk / "night"
    ended = plimsoll("eval", "tasks", "--out", str(run), "--concurrency", "2")
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert f"continue: plimsoll resume {run}" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("plimsoll: cannot write ")
    resize(small_disk, "64m")
    resumed = plimsoll("resume", str(run), "--json")
    assert "Traceback" not in resumed.stderr
    report = json.loads(resumed.stdout)
    assert (report["trials"], report["graded"], report["mean_reward"]) == (10, 10, 1.0)
    checked = plimsoll("ledger", str(run), "--check")
    assert checked.returncode == 0, checked.stdout


def test_an_eval_with_a_script_can_be_resumed_from_another_folder(
    write_task: WriteTask, start: Start, tmp_path: Path
):
    slow_tasks(write_task, 2)
    (tmp_path / "policy.toml").write_text('[[turns]]\nrun = "sleep 0.5"\n')
    asked = ("--agent", "shell", "--policy", "scripted:policy.toml", "--concurrency", "1")
    process = start("eval", "tasks", "--attempts", "3", *asked)
    run = started_run(tmp_path)
    wait_for(lambda: len(rows(run)) >= 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "elsewhere").mkdir()
    resume = [sys.executable, "-m", "plimsoll", "resume", str(run), "--json"]
    ended = subprocess.run(
        resume, cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["graded"] == 6
