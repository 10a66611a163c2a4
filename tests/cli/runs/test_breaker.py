"""`plimsoll eval` over broken graders: the breaker stops it and prints the reason."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from plimsoll.runs.validation.records import digest_task

pytestmark = pytest.mark.usefixtures("sandboxes")

WriteTask = Callable[..., Path]
Plimsoll = Callable[..., CompletedProcess[str]]

BROKEN = Path(__file__).parents[3] / "examples/broken"
BATCH = 64
SOLVED = "#!/bin/bash\n[ -e /done ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"


def test_a_run_with_one_failing_download_stops_before_its_second_batch(
    plimsoll: Plimsoll, tmp_path: Path
):
    path = BROKEN / "curl-pipe-sh-then-zero"
    ended = plimsoll("eval", str(path), "--attempts", "500", "--out", "out")
    assert ended.returncode == 3, ended.stderr
    kept = (tmp_path / "out/results.jsonl").read_text().splitlines()
    assert 16 <= len(kept) < BATCH
    said = ended.stdout
    assert "stopped by the breaker: dead-start · the first 16 trials are all void" in said
    assert "16 × void: grader · the grader could not fetch `example.invalid` with curl" in said
    assert "e.g. out/trials/curl-pipe-sh-then-zero." in said
    assert f"`example.invalid` cannot be fetched in a sandbox: plimsoll stage {path}" in said
    again = next(line for line in said.splitlines() if "without a fix: " in line)
    command = shlex.split(again.split("without a fix: ")[1])
    assert command[:3] == ["plimsoll", "eval", str(path)]
    assert "--keep-going" in command
    assert "--out" not in command


def test_a_run_with_graders_broken_in_two_ways_stops_after_its_first_batch(
    plimsoll: Plimsoll, tmp_path: Path
):
    for name in ("curl-pipe-sh-then-zero", "parser-cannot-be-imported"):
        (tmp_path / "tasks").mkdir(exist_ok=True)
        (tmp_path / "tasks" / name).symlink_to(BROKEN / name)
    ended = plimsoll("eval", "tasks", "--attempts", "200", "--json")
    assert ended.returncode == 3, ended.stderr
    report = json.loads(ended.stdout)
    (run,) = (tmp_path / "runs").iterdir()
    tries = (run / "results.jsonl").read_text().splitlines()
    assert report["trials"] <= BATCH <= len(tries) < 2 * BATCH, "each void trial is tried again"
    assert (report["graded"], report["mean_reward"]) == (0, None)
    breaker = report["breaker"]
    assert (breaker["rule"], breaker["stopped"]) == ("void-share", True)
    assert "64 of the last 64 trials are void (limit 50%)" in breaker["said"]
    assert any(
        "could not fetch `example.invalid` with curl" in line for line in breaker["evidence"]
    )
    assert any("could not import `log_parsers`" in line for line in breaker["evidence"])
    assert any("plimsoll stage tasks --to DIR" in line for line in breaker["remedies"])


@pytest.mark.slow
def test_a_small_set_of_tasks_broken_in_different_ways_completes(plimsoll: Plimsoll):
    ended = plimsoll("eval", str(BROKEN), "--json")
    assert ended.returncode == 3, ended.stderr
    report = json.loads(ended.stdout)
    assert report["trials"] == report["tasks"] >= 29
    assert "breaker" not in report


@pytest.mark.slow
def test_with_keep_going_a_run_ends_normally_and_names_the_alarm(plimsoll: Plimsoll):
    path = BROKEN / "no-reward-file"
    ended = plimsoll("eval", str(path), "--attempts", "24", "--keep-going")
    assert ended.returncode == 3, ended.stderr
    assert "breaker tripped (--keep-going): dead-start" in ended.stdout
    assert "24 trials in" in ended.stdout


def test_canaries_run_beside_the_trials(write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path):
    write_task("a", test=SOLVED, solve="touch /done")
    ended = plimsoll("eval", "tasks", "--attempts", "9", "--canary-every", "4", "--out", "out")
    assert ended.returncode == 0, ended.stderr
    assert "canaries: 2 of 2 good, one in 4 trials" in ended.stdout
    assert len((tmp_path / "out/canaries.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "out/canaries/a.1/verdict.json").exists()
    assert "9 trials in" in ended.stdout


def test_a_failed_canary_voids_earlier_trials_and_stops_the_run(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    """The task was valid before its grader broke. The nop agent is graded 0 before and after."""
    task = write_task("a", test=SOLVED, solve="touch /done")
    assert plimsoll("validate", "tasks").returncode == 0
    # The grader now looks for another file: the oracle is graded 0, and nop still 0.
    record = tmp_path / "tasks/.plimsoll/validation.json"
    kept = json.loads(record.read_text())
    (task / "tests/test.sh").write_text(SOLVED.replace("/done", "/elsewhere"))
    ended = plimsoll("eval", "tasks", "--attempts", "30", "--canary-every", "5", "--agent", "nop")
    assert "canaries: none yet" in ended.stdout  # a changed task cannot be a canary
    assert ended.returncode == 0, ended.stdout
    kept["tasks"][0]["digest"] = digest_task(task)
    record.write_text(json.dumps(kept))
    ended = plimsoll(
        "eval", "tasks", "--attempts", "30", "--canary-every", "5", "--agent", "nop", "--json"
    )
    assert ended.returncode == 3, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["breaker"]["rule"], report["graded"]) == ("canary", 0)
    assert {row["reason"] for row in report["results"]} == {
        "canary failed after it: a: graded 0, not 1"
    }
    assert report["trials"] < 30
    assert "canaries/a.1" in report["breaker"]["look"]
