"""Ctrl-C and SIGTERM: the run ends in time, leaves no process, and keeps finished trials."""

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import Start, wait_for

from helpers import processes_with

STUBBORN = """
import asyncio, sys
from plimsoll.cli.terminal import interrupts as module
from plimsoll.cli.terminal.interrupts import Interrupts, RemoteSandboxes

module.GRACE, module.LONG_GRACE = map(float, sys.argv[1:3])
sandboxes = RemoteSandboxes("a-run", lambda text: print(text, flush=True))

async def stubborn():
    print("running", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("not yet", flush=True)

with Interrupts(sandboxes=sandboxes if sys.argv[3:] else None) as interrupts:
    interrupts.run(stubborn())
    print("closing")
sys.exit(interrupts.exit_code)
"""
"""A program with the grace periods of its arguments."""


@pytest.mark.alone
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_in_time_and_keeps_finished_trials(
    write_task: Callable[..., Path], start: Start, tmp_path: Path, number: int, code: int
):
    mark = f"mark-{uuid.uuid4().hex}"
    write_task("a-quick")
    for name in ("long-1", "long-2"):
        write_task(name, solve=f"bash -c 'sleep 60; true {mark}'")
    process = start("eval", "tasks", "--concurrency", "2", "--out", "out", "--json")
    finished = tmp_path / "out/results.jsonl"

    def settled() -> bool:
        """True if the quick trial has finished and both long trials run."""
        at_work = [tmp_path / f"out/trials/{name}.1/agent" for name in ("long-1", "long-2")]
        over = finished.exists() and len(finished.read_text().splitlines()) == 1
        return over and all(map(Path.exists, at_work)) and len(processes_with(mark)) >= 2

    wait_for(settled, process)
    began = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # like a terminal: to the whole process group
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert process.returncode == code, err
    assert "interrupted after" in err
    assert "1 of 3 trials finished" in err
    assert [row["task"] for row in json.loads(out)["results"]] == ["a-quick"]
    assert len(finished.read_text().splitlines()) == 1
    assert json.loads((tmp_path / "out/summary.json").read_text()) == json.loads(out)
    cancelled = json.loads((tmp_path / "out/trials/long-1.1/verdict.json").read_text())
    assert cancelled["verdict"]["cause"] == "cancelled"
    assert processes_with(mark) == []


def test_the_next_run_removes_the_leftovers_of_a_killed_run(
    write_task: Callable[..., Path], start: Start, tmp_path: Path
):
    mark = f"mark-{uuid.uuid4().hex}"
    home = tmp_path / "home"
    (tmp_path / "plimsoll.toml").write_text(f'[local]\nhome = "{home}"\n')
    for number in range(4):
        write_task(f"long-{number}", solve=f"bash -c 'sleep 60; true {mark}'")
    killed = start("eval", "tasks", "--concurrency", "4", "--out", "killed")
    at_work = [tmp_path / f"killed/trials/long-{number}.1/agent" for number in range(4)]
    wait_for(lambda: all(map(Path.exists, at_work)), killed)
    wait_for(lambda: len(processes_with(mark)) >= 4, killed)
    killed.kill()
    _, err = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL, err
    write_task("quick")
    after = start("eval", "tasks", "--task", "quick", "--out", "after")
    out, err = after.communicate(timeout=60)
    assert after.returncode == 0, out + err
    assert processes_with(mark) == []
    assert str(home) not in Path("/proc/self/mounts").read_text()
    assert list((home / "sandboxes").iterdir()) == []


def start_stubborn(
    start: Start, *, grace: float = 600.0, long_grace: float = 600.0, remote: bool = False
) -> subprocess.Popen[str]:
    """A run that does not end when it is cancelled. Its sandboxes may be remote."""
    words = (str(grace), str(long_grace), *(["remote"] if remote else []))
    process = start(*words, python=("-c", STUBBORN))
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


def test_cleanup_past_its_time_limit_is_abandoned(start: Start):
    process = start_stubborn(start, grace=0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.endswith("closing\n")


def test_a_second_signal_ends_the_run_without_waiting_for_the_cleanup(start: Start):
    process = start_stubborn(start)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "not yet\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.parametrize("again", [False, True])
def test_sandboxes_that_outlive_the_process_get_more_time_and_are_named_if_left(
    start: Start, again: bool
):
    long_grace = 600.0 if again else 1.0
    process = start_stubborn(start, grace=0.1, long_grace=long_grace, remote=True)
    assert process.stdout is not None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert "removing the sandboxes of a-run; press Ctrl-C again" in process.stdout.readline()
    assert process.stdout.readline() == "not yet\n"
    if again:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert again or time.monotonic() - began >= long_grace
    assert "sandboxes may be left; remove them with: plimsoll clean a-run" in (
        err if again else out
    )
    assert process.returncode == 130
