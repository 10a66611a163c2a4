"""`plimsoll eval` with real tasks in real sandboxes."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess, Popen

import pytest

from helpers import marked

WriteTask = Callable[..., Path]
Plimsoll = Callable[..., CompletedProcess[str]]

ROW = {"task", "attempt", "verdict", "reward", "rewards", "ending", "cause", "reason"}
ROW |= {"seconds", "sandbox_seconds", "ticket", "trial", "folder"}
WHOLE = {"tasks", "trials", "graded", "void", "mean_reward", "trials_per_minute", "results", "pool"}
UNGRADED = "#!/bin/bash\ntrue\n"


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["in process", "two workers"])
def test_every_trial_graded_exits_0_and_json_is_all_of_stdout(
    write_task: WriteTask,
    plimsoll: Plimsoll,
    tmp_path: Path,
    mark: str,
    workers: tuple[str, ...],
):
    write_task("a")
    write_task("b", test="#!/bin/bash\necho 0.5 > /logs/verifier/reward.txt\n")
    ended = plimsoll("eval", "tasks", "--json", "--attempts", "2", *workers)
    assert ended.returncode == 0, ended.stderr
    assert marked(mark) == {}
    (run,) = (tmp_path / "runs").iterdir()
    number = 2 if workers else 1
    assert tomllib.loads((run / "config.toml").read_text())["workers"]["number"] == number
    report = json.loads(ended.stdout)
    assert set(report) == WHOLE
    assert (report["tasks"], report["trials"], report["graded"]) == (2, 4, 4)
    assert (report["void"], report["mean_reward"]) == ({}, 0.75)
    assert report["trials_per_minute"] > 0
    assert [(row["task"], row["attempt"]) for row in report["results"]] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]
    for row in report["results"]:
        assert set(row) == ROW
        assert (row["verdict"], row["ending"]) == ("graded", "submitted")
        assert (row["cause"], row["reason"]) == (None, None)


def test_a_small_evaluation_imports_nothing_of_training_worker_processes_or_docker(
    write_task: WriteTask, start: Callable[..., Popen[str]]
):
    write_task("a")
    process = start("eval", "tasks", "--json", python=("-X", "importtime", "-m", "plimsoll"))
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out)["graded"] == 1
    imported = {line.rpartition("|")[2].strip() for line in err.splitlines()}
    assert "plimsoll.workers.controller.in_process" in imported
    heavy = {
        *("torch", "transformers", "safetensors", "numpy", "ray", "zmq", "fsspec", "aiodocker"),
        *("plimsoll.training", "plimsoll.sandboxes.docker", "plimsoll.runs.cleanup"),
        *("plimsoll.workers.controller.supervisor", "plimsoll.workers.channel"),
        *("plimsoll.workers.engines.process", "plimsoll.workers.worker.worker"),
    }
    assert imported & heavy == set()


def test_a_void_trial_exits_3_and_has_no_number(write_task: WriteTask, plimsoll: Plimsoll):
    write_task("a", test=UNGRADED)
    ended = plimsoll("eval", "tasks", "--json")
    assert ended.returncode == 3, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["graded"], report["void"], report["mean_reward"]) == (0, {"grader": 1}, None)
    (row,) = report["results"]
    assert (row["verdict"], row["cause"]) == ("void", "grader")
    assert (row["reward"], row["rewards"]) == (None, None)
    assert row["reason"]


def test_the_closing_table_names_cause_reason_remedy_and_folder(
    write_task: WriteTask, plimsoll: Plimsoll
):
    write_task("good")
    write_task("ungraded", test=UNGRADED)
    ended = plimsoll("eval", "tasks", "--attempts", "2", "--out", "out")
    assert ended.returncode == 3, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("plimsoll 0.1 · local sandboxes (namespaces, no daemon) · ")
    assert lines[0].endswith("agent oracle · 2 tasks × 2")
    table = [line.split() for line in lines[1:5]]
    assert table == [
        ["task", "graded", "mean", "void"],
        ["good", "2/2", "1.00", "–"],
        ["ungraded", "0/2", "–", "grader", "2"],
        ["all", "2", "tasks", "2/4", "1.00", "grader", "2"],
    ]
    reason = next(line for line in lines if line.startswith("  ungraded (2 of 2)"))
    assert "out/trials/ungraded." in reason
    assert any("remedy: read verifier/stdout.txt" in line for line in lines)
    assert lines[-1].startswith("see: out/summary.json · plimsoll show ")
    assert "out/trials/ungraded." in lines[-1]


def test_every_attempt_is_stored_with_its_verdict(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a")
    write_task("b", test=UNGRADED)
    ended = plimsoll("eval", "tasks", "--attempts", "2", "--out", "out", "--json")
    trials = tmp_path / "out/trials"
    kept = {
        folder.name: json.loads((folder / "verdict.json").read_text())
        for folder in trials.iterdir()
    }
    assert {name: file["verdict"]["verdict"] for name, file in kept.items()} == {
        "a.1": "graded",
        "a.2": "graded",
        "b.1": "void",
        "b.1~2": "void",
        "b.2": "void",
        "b.2~2": "void",
    }
    assert len((tmp_path / "out/results.jsonl").read_text().splitlines()) == len(kept)
    assert json.loads((tmp_path / "out/summary.json").read_text()) == json.loads(ended.stdout)


def test_a_second_run_into_the_same_folder_is_refused(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a")
    assert plimsoll("eval", "tasks", "--out", "out").returncode == 0
    before = (tmp_path / "out/results.jsonl").read_bytes()
    again = plimsoll("eval", "tasks", "--out", "out")
    assert again.returncode == 2
    assert "already holds trials" in again.stderr
    assert (tmp_path / "out/results.jsonl").read_bytes() == before


def test_an_invalid_task_is_named_and_nothing_runs(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("good")
    write_task("bad", toml='[agent]\ntimeout_sec = "soon"\n')
    ended = plimsoll("eval", "tasks", "--json")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "tasks/bad/task.toml:3: agent.timeout_sec" in ended.stderr
    assert "--skip-invalid runs the other 1" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_skip_invalid_runs_the_rest_and_still_names_the_invalid_one(
    write_task: WriteTask, plimsoll: Plimsoll
):
    write_task("good")
    write_task("bad", toml='[agent]\ntimeout_sec = "soon"\n')
    ended = plimsoll("eval", "tasks", "--skip-invalid")
    assert ended.returncode == 0, ended.stderr
    assert "not run: tasks/bad/task.toml:3" in ended.stderr
    assert "  tasks/bad/task.toml:3" in ended.stdout
    assert "good" in ended.stdout


def test_unknown_keys_cause_a_warning_and_many_are_counted(
    write_task: WriteTask, plimsoll: Plimsoll
):
    write_task("a", toml="[agent]\ntimeout_secs = 3\n")
    write_task("b", toml="".join(f"novel_{n} = 1\n" for n in range(12)))
    ended = plimsoll("eval", "tasks", "--json", "--agent", "nop")
    assert ended.returncode == 0, ended.stderr
    assert "tasks/a/task.toml:3: unknown key agent.timeout_secs" in ended.stderr
    assert ended.stderr.count("unknown key ") == 10
    assert "and 3 more unknown keys" in ended.stderr


def test_a_pattern_chooses_tasks(write_task: WriteTask, plimsoll: Plimsoll):
    write_task("one")
    write_task("two")
    report = json.loads(plimsoll("eval", "tasks", "--task", "t*", "--json").stdout)
    assert [row["task"] for row in report["results"]] == ["two"]


def test_bad_usage_is_one_line_and_exits_2(write_task: WriteTask, plimsoll: Plimsoll):
    write_task("a")
    for args in (
        ("nowhere",),
        ("tasks", "--agent", "genius"),
        ("tasks", "--backend", "cloud"),
        ("tasks", "--attempts", "0"),
        ("tasks", "--task", "z*"),
        ("tasks", "--config", "none.toml"),
    ):
        ended = plimsoll("eval", *args)
        assert (ended.returncode, ended.stdout) == (2, ""), args
        assert ended.stderr.startswith("plimsoll: "), args
        assert "Traceback" not in ended.stderr, args


def test_a_pool_gives_the_same_verdicts_and_reports_its_hits(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a")
    write_task("b", test=UNGRADED)
    rows: list[object] = []
    for reuse in ("none", "fresh", "reset"):
        ended = plimsoll(
            "eval", "tasks", "--attempts", "3", "--pool", reuse, "--json", "--out", reuse
        )
        assert ended.returncode == 3, ended.stderr
        report = json.loads(ended.stdout)
        pool = report["pool"]
        assert pool["reuse"] == reuse
        assert pool["hits"] + pool["cold_starts"] == 9, "three trials were void and retried"
        assert pool["start"]["count"] >= 6
        assert sum(span["starts"] for span in pool["start_over_time"]) == pool["start"]["count"]
        assert ("wait_warm" in pool) == (pool["hits"] > 0)
        assert json.loads((tmp_path / reuse / "summary.json").read_text()) == report
        heads = {"none": "sandboxes: start", "fresh": "pool fresh: ", "reset": "pool reset: "}
        assert heads[reuse] in ended.stderr
        once = "warning: a sandbox is used once, not reset"
        assert ended.stderr.count(once) == (reuse == "reset")
        rows.append([(row["task"], row["attempt"], row["reward"]) for row in report["results"]])
    assert rows[0] == rows[1] == rows[2]


def test_a_trial_leases_the_sandbox_that_was_prewarmed_for_it(
    write_task: WriteTask, plimsoll: Plimsoll
):
    for name in "abcd":  # different variables, so that no two tasks share a sandbox
        write_task(name, toml=f"[environment.env]\nNAME = '{name}'\n", solve="sleep 0.5")
    ended = plimsoll(
        *("eval", "tasks", "--attempts", "3", "--concurrency", "2", "--pool", "fresh", "--json")
    )
    assert ended.returncode == 0, ended.stderr
    pool = json.loads(ended.stdout)["pool"]
    # The first trial of each task is never prewarmed: its image is not known yet.
    assert pool["hits"] >= 6, pool
    assert pool["start"]["count"] <= 14, "too many sandboxes were started and not used"


def test_the_pool_option_overrides_the_config(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a")
    (tmp_path / "plimsoll.toml").write_text('[pool]\nreuse = "fresh"\n')
    assert json.loads(plimsoll("eval", "tasks", "--json").stdout)["pool"]["reuse"] == "fresh"
    report = json.loads(plimsoll("eval", "tasks", "--json", "--pool", "none").stdout)
    assert report["pool"]["reuse"] == "none"
    assert plimsoll("eval", "tasks", "--pool", "always").returncode == 2
