"""`plimsoll eval` with agents that use a policy."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.gateway.upstreams.scripted.server import ServerFeatures
from plimsoll.trajectories.trajectory_file import read_trajectory
from policy_agents import serve_in_thread

WriteTask = Callable[..., Path]
Plimsoll = Callable[..., CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]

GRADER = "#!/bin/bash\n([ -e /tmp/done ] && echo 1 || echo 0) > /logs/verifier/reward.txt\n"
WORKS = Script(turns=(Turn(run="touch /tmp/done", text="I do it."), Turn(submit=True)))
SCRIPT = '[[turns]]\nrun = "touch /tmp/done"\n[[turns]]\nsubmit = true\n'


def test_an_agent_with_a_policy_is_graded_and_has_a_trajectory(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a", test=GRADER)
    with serve_in_thread(WORKS) as server:
        ended = plimsoll(
            "eval", "tasks", "--agent", "shell", "--policy", server.url, "--json", "--out", "out"
        )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["graded"], report["mean_reward"]) == (1, 1.0)
    assert report["results"][0]["ending"] == "submitted"
    assert f"agent shell · policy {server.url}" in ended.stderr
    trial = tmp_path / "out/trials/a.1"
    assert json.loads((trial / "verdict.json").read_text())["ends"]["main"]["turns"] == 2
    trajectory = read_trajectory(trial / "trajectory.jsonl.zst")
    assert trajectory.opened.about["model"] == "scripted"
    assert not any(one.untrainable for one in trajectory.exchanges)
    shown = plimsoll("show", "out/trials/a.1")
    assert shown.returncode == 0, shown.stderr
    assert "touch /tmp/done" in shown.stdout


def test_a_text_only_server_is_enough_for_an_evaluation(write_task: WriteTask, plimsoll: Plimsoll):
    write_task("a", test=GRADER)
    offers = ServerFeatures(logprobs=False, token_ids=False, tools=False, strict=True, count=False)
    block = "Like so:\n```bash\ntouch /tmp/done\n```"
    with serve_in_thread(
        lambda asked: "Done." if "exit 0" in asked.last else block, offers
    ) as server:
        ended = plimsoll("eval", "tasks", "--agent", "shell", "--policy", server.url, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["mean_reward"] == 1.0


def test_a_script_can_stand_in_for_a_policy(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a", test=GRADER)
    (tmp_path / "says.toml").write_text(SCRIPT)
    ended = plimsoll("eval", "tasks", "--agent", "shell", "--policy", "scripted:says.toml")
    assert ended.returncode == 0, ended.stderr
    assert "policy scripted:says.toml" in ended.stdout


def test_the_config_may_name_the_policy_and_the_turns(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a", test=GRADER)
    (tmp_path / "says.toml").write_text(SCRIPT)
    (tmp_path / "plimsoll.toml").write_text('[policy]\nurls = ["scripted:says.toml"]\nturns = 1\n')
    report = json.loads(plimsoll("eval", "tasks", "--agent", "shell", "--json").stdout)
    assert report["results"][0]["ending"] == "budget"
    more = ("eval", "tasks", "--agent", "shell", "--json", "--turns", "2")
    assert json.loads(plimsoll(*more).stdout)["results"][0]["ending"] == "submitted"


def check_refused(ended: CompletedProcess[str], folder: Path, *words: str) -> None:
    """Check for a one-line message with these words, exit status 2, and no run directory."""
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    for word in words:
        assert word in ended.stderr
    assert not (folder / "runs").exists()
    assert not (folder / "out").exists()


@pytest.mark.parametrize("out", [(), ("--out", "out")], ids=["usual", "out"])
def test_with_an_unreachable_policy_no_trial_starts(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path, dead_url: str, out: tuple[str, ...]
):
    write_task("a")
    ended = plimsoll("eval", "tasks", "--agent", "shell", "--policy", dead_url, *out)
    check_refused(ended, tmp_path, dead_url, "Connection refused", "nothing was started", "probe")


def test_one_unreachable_replica_does_not_prevent_the_evaluation(
    write_task: WriteTask, plimsoll: Plimsoll, dead_url: str
):
    write_task("a", test=GRADER)
    with serve_in_thread(WORKS) as server:
        options = ("--agent", "shell", "--policy", dead_url, "--policy", server.url, "--json")
        ended = plimsoll("eval", "tasks", *options)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--agent", "shell"), ("needs a policy", "--policy URL")),
        (("--agent", "oracle", "--policy", "http://a/v1"), ("oracle asks no policy",)),
        (("--agent", "shell", "--policy", "gpu-1:8000"), ("is not a URL", "http://HOST:PORT/v1")),
        (("--agent", "shell", "--policy", "scripted:no.toml"), ("no.toml", "No such file")),
        (
            ("--agent", "shell", "--policy", "scripted:a", "--policy", "http://a/v1"),
            ("one or more URLs, or one scripted:FILE",),
        ),
        (("--agent", "shel", "--policy", "http://a/v1"), ("'shel'", "claude-code")),
    ],
    ids=["none", "oracle", "no-url", "no-file", "both", "no-agent"],
)
def test_invalid_policy_options_are_refused_before_any_trial(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path, options, words
):
    write_task("a")
    check_refused(plimsoll("eval", "tasks", *options), tmp_path, *words)


def test_a_policy_that_fails_is_void_and_counted(write_task: WriteTask, plimsoll: Plimsoll):
    write_task("a", test=GRADER)
    turns = (Turn(run="touch /tmp/done"), Turn(failure=500))
    with serve_in_thread(Script(turns=turns)) as server:
        ended = plimsoll("eval", "tasks", "--agent", "shell", "--policy", server.url, "--json")
    assert ended.returncode == 3
    report = json.loads(ended.stdout)
    assert (report["graded"], report["void"], report["mean_reward"]) == (0, {"policy": 1}, None)
    row = report["results"][0]
    assert "500" in row["reason"]
    assert (row["turns"], report["turns"]) == (1, 1)
    assert row["answer_tokens"] > 0
    assert row["prompt_tokens"] > row["answer_tokens"]


def test_the_usage_of_the_policy_is_summed_up(
    write_task: WriteTask, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a", test=GRADER)
    write_task("b", test=GRADER)
    with serve_in_thread(WORKS) as server:
        options = ("--agent", "shell", "--policy", server.url, "--out", "out")
        ended = plimsoll("eval", "tasks", *options)
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("policy: ")]
    summary = json.loads((tmp_path / "out/summary.json").read_bytes())
    rows = summary["results"]
    for figure in ("turns", "prompt_tokens", "answer_tokens"):
        assert summary[figure] == sum(row[figure] for row in rows)
        assert f"{summary[figure]:,}" in line
    assert "plimsoll show out/trials/" in ended.stdout.splitlines()[-1]


def test_ctrl_c_closes_the_trajectory(write_task: WriteTask, start: Start, tmp_path: Path):
    write_task("a", test=GRADER)
    turns = (Turn(run="touch /tmp/done"), Turn(text="Late.", delay=60))
    with serve_in_thread(Script(turns=turns)) as server:
        process = start("eval", "tasks", "--agent", "shell", "--policy", server.url, "--out", "out")
        part = tmp_path / "out/trials/a.1/trajectory.jsonl.zst.part"
        deadline = time.monotonic() + 120
        while not (part.exists() and read_trajectory(part).exchanges and server.in_flight):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - began < 20
    trajectory = read_trajectory(tmp_path / "out/trials/a.1/trajectory.jsonl.zst")
    assert trajectory.closed is not None
    assert (trajectory.closed.ending, len(trajectory.exchanges)) == ("cancelled", 1)
    assert server.disconnects
