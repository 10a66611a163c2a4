"""`plimsoll run`, `resume`, `stop`, `status` and `clean` with real workers and real sandboxes."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import (
    Plimsoll,
    Start,
    check_ledger,
    no_sandbox,
    prompts,
    rows,
    wait_for,
    write_run,
)

from helpers import marked
from sandbox_owner import running_owner

WriteTask = Callable[..., Path]

UNGRADED = "#!/bin/bash\ntrue\n"


def test_a_run_completes_its_steps_and_exits_0(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path, mark: str
):
    for name in ("a", "b", "c"):
        write_task(name)
    write_run(tmp_path)
    ended = plimsoll("run", "night.toml", "--out", "runs/night")
    assert ended.returncode == 0, ended.stderr
    first, *_, proof, look = ended.stdout.splitlines()
    assert first.startswith("plimsoll 0.1 · local sandboxes (namespaces, no daemon) · agent oracle")
    assert "3 tasks · 3 steps of 2 × 2 trials" in first
    assert "nothing lost, nothing twice (ledger checked)" in proof
    assert look.startswith("see: runs/night/summary.json")
    run = tmp_path / "runs/night"
    assert prompts(run) == list(range(6))
    assert {row["reward"] for row in rows(run)} == {1.0}
    assert len(list((run / "trials").iterdir())) == len(rows(run)) == 12
    assert (run / "config.toml").exists()
    assert marked(mark) == {}
    assert no_sandbox(tmp_path)
    check_ledger(plimsoll, "runs/night")
    # The config in the run directory is complete: a resume does not need night.toml.
    again = plimsoll("resume", "night", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["steps"] == 3


@pytest.mark.slow
def test_a_run_without_training_evaluates_its_held_out_tasks(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    for name in ("a", "b"):
        write_task(name)
    (tmp_path / "heldout").mkdir()
    write_task("z").rename(tmp_path / "heldout" / "z")
    config = write_run(tmp_path)
    with config.open("a") as file:
        file.write('[evaluation]\ntasks = "heldout"\nevery = 2\n')
    ended = plimsoll("run", "night.toml", "--out", "runs/night")
    assert ended.returncode == 0, ended.stderr
    assert "held-out reward 1.00 → 1.00" in ended.stdout
    lines = (tmp_path / "runs/night/heldout.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 2, 3]
    # A resume does not repeat the evaluation of a step.
    assert plimsoll("resume", "night").returncode == 0
    assert (tmp_path / "runs/night/heldout.jsonl").read_text().splitlines() == lines
    check_ledger(plimsoll, "runs/night")


def test_json_is_all_of_stdout_and_trajectories_are_named_after_tickets(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task(
        "a", test="#!/bin/bash\ntest -f /tmp/done; echo $((1-$?)) >/logs/verifier/reward.txt\n"
    )
    (tmp_path / "policy.toml").write_text('[[turns]]\nrun = "touch /tmp/done"\n')
    with write_run(tmp_path, agent="shell", steps=2).open("a") as file:
        file.write('[policy]\nurls = ["scripted:policy.toml"]\n')
    ended = plimsoll("run", "night.toml", "--out", "out", "--json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["done"], report["steps"], report["graded"], report["void"]) == (True, 2, 8, {})
    assert (report["reward"], report["problems"]) == (1.0, [])
    assert json.loads((tmp_path / "out/summary.json").read_text()) == report
    stored = {path.name for path in (tmp_path / "out/trajectories").iterdir()}
    assert stored == {
        f"{row['ticket'].replace('/', '_')}.jsonl.zst" for row in rows(tmp_path / "out")
    }
    for row in rows(tmp_path / "out"):
        # The row of a run has the figures of a row of `plimsoll eval`.
        assert row["trajectory"] and row["trial"] and row["folder"] and row["sandbox_seconds"]
        assert row["turns"] == 2 and row["prompt_tokens"] > row["answer_tokens"] > 0


def write_pooled_run(folder: Path, **run: object) -> None:
    with write_run(folder, **run).open("a") as file:
        file.write('[pool]\nreuse = "fresh"\n')


@pytest.mark.slow
def test_workers_prewarm_sandboxes_and_the_run_reports_pool_hits(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path, mark: str
):
    write_task("a")
    write_pooled_run(tmp_path, steps=4)
    ended = plimsoll("run", "night.toml", "--out", "runs/night")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "runs/night/summary.json").read_text())
    pool = summary["pool"]
    assert pool["hits"] + pool["cold_starts"] == summary["trials"] == 16
    assert pool["hits"] >= 4
    assert sum(span["starts"] for span in pool["start_over_time"]) == pool["start"]["count"]
    said = f"pool fresh: {pool['hits']} of 16 leases were ready · start p50"
    assert said in ended.stdout
    shown = plimsoll("status", "night")
    assert f"pool fresh  {pool['hits']} of 16 leases were ready" in shown.stdout
    assert json.loads(plimsoll("status", "night", "--json").stdout)["pool"] == pool
    assert marked(mark) == {}
    assert no_sandbox(tmp_path)


@pytest.mark.slow
def test_a_warning_of_several_workers_is_printed_once(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a")
    file = write_run(tmp_path, steps=2)
    file.write_text(
        file.read_text().replace("[workers]", "[workers]\nnumber = 2") + '[pool]\nreuse = "reset"\n'
    )
    ended = plimsoll("run", "night.toml", "--out", "out")
    assert ended.returncode == 0, ended.stderr
    why = "a sandbox is used once, not reset: its backend has no reset (local)"
    assert ended.stderr.count(f"warning: {why}") == 1
    assert json.loads((tmp_path / "out/summary.json").read_text())["warnings"].count(why) == 1
    assert f"warning     {why}" in plimsoll("status", "out").stdout


def test_a_run_that_cannot_finish_exits_3_with_the_reason(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a", test=UNGRADED)
    write_run(tmp_path, requeues=0)
    ended = plimsoll("run", "night.toml", "--out", "out")
    assert ended.returncode == 3, ended.stderr
    assert "no task is left: all are excluded" in ended.stdout
    assert "excluded: a: void" in ended.stdout
    assert "continue: plimsoll resume out" in ended.stdout
    for command in ("status", "ledger"):
        lines = [line.split() for line in plimsoll(command, "out").stdout.splitlines()]
        assert ["excluded", "a:", "void"] in [line[:3] for line in lines]


@pytest.mark.parametrize("file", ["ledger.db", "ledger.json"])
def test_an_existing_run_directory_is_refused(plimsoll_here: Plimsoll, tmp_path: Path, file: str):
    (tmp_path / "tasks").mkdir()
    write_run(tmp_path, steps=1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / file).write_text("the ledger of a run, or its location")
    ended = plimsoll_here("run", "night.toml", "--out", "out")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "continue it with `plimsoll resume out`" in ended.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == [file]


def start_two_trials(start: Start, tmp_path: Path) -> tuple[object, Path]:
    """Start a run and wait until two trials run. Returns its process and its directory."""
    process = start("run", "night.toml", "--out", "runs/night")
    run = tmp_path / "runs/night"
    wait_for(lambda: len(list(run.glob("trials/*/agent"))) >= 2, process)
    wait_for((run / "status.json").exists, process)
    return process, run


def test_stop_drains_a_run_and_status_reports_both_states(
    write_task: WriteTask, plimsoll: Plimsoll, start: Start, tmp_path: Path, mark: str
):
    for name in ("a", "b"):
        write_task(name, solve="sleep 60")
    write_run(tmp_path)
    process, run = start_two_trials(start, tmp_path)
    wait_for(lambda: json.loads((run / "status.json").read_text())["running"] == 2)
    alive = plimsoll("status", "night")
    assert alive.returncode == 0, alive.stderr
    assert f"run runs/night · running · pid {process.pid} on" in alive.stdout
    assert "step 0/3" in alive.stdout
    assert "worker-1" in alive.stdout
    refused = plimsoll("resume", "night")
    assert refused.returncode == 2
    assert f"is running: pid {process.pid}" in refused.stderr
    assert plimsoll("clean", "night").returncode == 2
    began = time.monotonic()
    stopped = plimsoll("stop", "night")
    assert stopped.returncode == 0, stopped.stderr
    assert 1 <= time.monotonic() - began < 40
    assert "has ended · continue: plimsoll resume runs/night" in stopped.stdout
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "stopping: running trials have 1 s" in err
    assert "cancelled 2" in out
    assert marked(mark) == {}
    assert no_sandbox(tmp_path)
    after = json.loads(plimsoll("status", "night", "--json").stdout)
    assert (after["state"], after["why"], after["void"]) == (
        "ended",
        "it was stopped",
        {"cancelled": 2},
    )
    assert "is not running" in plimsoll("stop", "night").stdout
    check_ledger(plimsoll, "night")


def sandboxes(folder: Path) -> set[str]:
    return {path.name for path in (folder / "home/sandboxes").iterdir() if path.is_dir()}


def test_prewarmed_sandboxes_close_before_the_grace_period_ends(
    write_task: WriteTask, start: Start, tmp_path: Path, mark: str
):
    write_task("a", solve="sleep 600")
    write_pooled_run(tmp_path)
    config = tmp_path / "night.toml"
    config.write_text(config.read_text().replace("grace_seconds = 1", "grace_seconds = 500"))
    process, _ = start_two_trials(start, tmp_path)
    wait_for(lambda: len(sandboxes(tmp_path)) == 4, process)  # two in use, two prewarmed
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: len(sandboxes(tmp_path)) == 2, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    wait_for(lambda: marked(mark) == {})
    wait_for(lambda: no_sandbox(tmp_path))


def test_prewarmed_sandboxes_of_a_killed_worker_are_removed(
    write_task: WriteTask, plimsoll: Plimsoll, start: Start, tmp_path: Path, mark: str
):
    write_task("a", solve="sleep 600")
    write_pooled_run(tmp_path)
    process, run = start_two_trials(start, tmp_path)
    wait_for(lambda: len(sandboxes(tmp_path)) == 4, process)
    before = sandboxes(tmp_path)
    (worker,) = json.loads((run / "status.json").read_text())["workers"]
    os.kill(int(worker["where"].removeprefix("pid ")), signal.SIGKILL)
    # The worker that replaces it removes them, and has as many sandboxes of its own.
    wait_for(lambda: len(sandboxes(tmp_path) - before) == 4, process)
    wait_for(lambda: not sandboxes(tmp_path) & before, process)
    assert plimsoll("stop", "night", "--now").returncode == 0
    process.communicate(timeout=60)
    wait_for(lambda: marked(mark) == {})
    wait_for(lambda: no_sandbox(tmp_path))


def test_stop_now_does_not_wait_for_trials(
    write_task: WriteTask, plimsoll: Plimsoll, start: Start, tmp_path: Path, mark: str
):
    write_task("a", solve="sleep 60")
    config = write_run(tmp_path)
    config.write_text(config.read_text().replace("grace_seconds = 1", "grace_seconds = 50"))
    process, _ = start_two_trials(start, tmp_path)
    began = time.monotonic()
    assert plimsoll("stop", "night", "--now").returncode == 0
    assert time.monotonic() - began < 40
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "continue: plimsoll resume runs/night" in err
    wait_for(lambda: marked(mark) == {})
    wait_for(lambda: no_sandbox(tmp_path))


def test_stop_before_the_first_trial_says_that_there_is_nothing_to_resume(
    write_task: WriteTask, plimsoll: Plimsoll, start: Start, tmp_path: Path
):
    write_task("a", solve="sleep 60")
    write_run(tmp_path, validate=True)
    process = start("run", "night.toml", "--out", "runs/night")
    wait_for(lambda: any(tmp_path.glob("home/sandboxes/*")), process)
    stopped = plimsoll("stop", "night")
    assert stopped.returncode == 0, stopped.stderr
    assert "runs/night ended before its first trial: there is nothing to" in stopped.stdout
    process.communicate(timeout=60)
    assert not (tmp_path / "runs/night/ledger.db").exists()


def test_a_run_removes_the_leftovers_of_other_killed_processes(
    write_task: WriteTask, plimsoll: Plimsoll, start: Start, tmp_path: Path
):
    write_task("a", solve="sleep 60")
    write_run(tmp_path)
    process, _ = start_two_trials(start, tmp_path)
    with running_owner(tmp_path / "home", "other", 1) as other:
        other.kill()
        assert (tmp_path / "home/sandboxes" / other.ids[0]).exists()
        assert plimsoll("stop", "night").returncode == 0
        process.communicate(timeout=60)
        assert no_sandbox(tmp_path)


@pytest.mark.slow
def test_a_hanging_worker_leaves_no_sandbox(
    write_task: WriteTask, start: Start, tmp_path: Path, mark: str
):
    write_task("a", solve="sleep 60")
    write_run(tmp_path)
    process, _ = start_two_trials(start, tmp_path)
    wait_for(lambda: not no_sandbox(tmp_path))
    (worker,) = (pid for pid, what in marked(mark).items() if "plimsoll.workers" in what)
    os.kill(worker, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, out + err
    assert no_sandbox(tmp_path)
    wait_for(lambda: marked(mark) == {})


def test_clean_removes_leftovers_of_a_killed_run_and_keeps_its_results(
    write_task: WriteTask,
    plimsoll: Plimsoll,
    start: Start,
    tmp_path: Path,
    mark: str,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    write_task("a", solve="sleep 60")
    write_run(tmp_path)
    process, run = start_two_trials(start, tmp_path)
    (scratch,) = (tmp_path / "tmp").iterdir()
    # Controller and workers die together, so that neither cleans up after the other.
    process.send_signal(signal.SIGSTOP)
    for pid, what in marked(mark).items():
        if "plimsoll.workers" in what:
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate()
    wait_for(lambda: marked(mark) == {})
    (run / "status.json.part").write_text("{")
    killed = plimsoll("status", "runs/night")
    assert "run runs/night · killed" in killed.stdout
    before = {path.name for path in run.iterdir()}
    ended = plimsoll("clean", "night", "--backend", "local", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["files"] == [
        "runs/night/status.json.part",
        "runs/night/controller.json",
        str(scratch),
    ]
    assert no_sandbox(tmp_path)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert before - {path.name for path in run.iterdir()} == {"status.json.part", "controller.json"}


BY_NAME = ("status", "stop", "resume", "ledger")
"""The commands that find a run by its name or its directory. `clean` also asks the backends."""


@pytest.mark.parametrize("command", BY_NAME)
@pytest.mark.parametrize("name", ["", " ", "nigh", "nowhere/at/all"])
def test_an_unknown_run_name_is_refused_and_the_runs_are_named(
    plimsoll_here: Plimsoll, tmp_path: Path, command: str, name: str
):
    make_run(tmp_path / "runs/night")
    ended = plimsoll_here(command, name)
    assert (ended.returncode, ended.stdout) == (2, "")
    problem = f"no run is called {name!r}" if name.strip() else "the name of the run is empty"
    assert ended.stderr == f"plimsoll: {problem}; runs here: night\n"


def make_run(folder: Path) -> None:
    """Make the files by which a directory is recognized as that of a run."""
    folder.mkdir(parents=True)
    (folder / "config.toml").touch()
    (folder / "ledger.db").touch()


def test_an_ambiguous_run_name_is_refused(plimsoll_here: Plimsoll, tmp_path: Path):
    make_run(tmp_path / "night")
    make_run(tmp_path / "runs/night")
    for command in (*BY_NAME, "clean"):
        ended = plimsoll_here(command, "night")
        assert ended.returncode == 2
        assert "matches two runs: write ./night or runs/night" in ended.stderr


def test_two_paths_of_one_run_are_not_ambiguous(plimsoll_here: Plimsoll, tmp_path: Path):
    make_run(tmp_path / "disk/night")
    (tmp_path / "runs").mkdir()
    for link in ("night", "runs/night"):
        (tmp_path / link).symlink_to(tmp_path / "disk/night")
    ended = plimsoll_here("stop", "night")
    assert (ended.returncode, ended.stdout) == (0, "night is not running\n")


def test_workers_that_cannot_start_are_reported_with_a_remedy(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a")
    file = write_run(tmp_path)
    file.write_text(file.read_text().replace("[workers]\n", "[workers]\nmemory_mb = 1\n"))
    ended = plimsoll("run", "night.toml", "--out", "out")
    assert ended.returncode == 2
    assert "a worker cannot start" in ended.stderr
    assert "raise memory_mb" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_run_with_an_unreachable_policy_is_not_started(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a")
    with write_run(tmp_path, agent="shell").open("a") as file:
        file.write('[policy]\nurls = ["http://127.0.0.1:9/v1"]\n')
    began = time.monotonic()
    ended = plimsoll("run", "night.toml", "--out", "out")
    assert ended.returncode == 2
    assert "the policy at http://127.0.0.1:9/v1 cannot be reached" in ended.stderr
    assert "nothing was started" in ended.stderr
    assert time.monotonic() - began < 60
    # There is no run to resume: the next attempt is a new run.
    assert not (tmp_path / "out").exists()
