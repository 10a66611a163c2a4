"""A run continues without a reader of its output; a closed terminal stops it in order."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from run_files import Plimsoll, Start, check_ledger, no_sandbox, wait_for, write_run

SLOW = "sleep 0.2; echo 1 >/logs/verifier/reward.txt\n"

CLEANS_UP = """
import asyncio, sys
from plimsoll.cli.terminal.interrupts import Interrupts

async def main():
    try:
        print("running", flush=True)
        await asyncio.sleep(60)
    finally:
        print("cleaning", flush=True)
        await asyncio.sleep(0.5)
        print("clean", flush=True)

with Interrupts() as interrupts:
    interrupts.run(main())
sys.exit(interrupts.exit_code)
"""


def steps(run: Path) -> int:
    path = run / "steps.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def sighup_handler(handler: signal.Handlers) -> Iterator[None]:
    """Set the handler of SIGHUP that the processes started in the block inherit.

    The handler of this process may be another one: it may run under nohup.
    """
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def reader(kind: str) -> Iterator[int]:
    """The writing end of a terminal or a pipe. The end of the block closes the reading end."""
    ours, theirs = pty.openpty() if kind == "terminal" else os.pipe()
    try:
        yield theirs
    finally:
        os.close(ours)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["terminal", "pipe"])
def test_a_run_completes_after_its_reader_is_gone(
    write_task: Callable[..., Path], plimsoll: Plimsoll, tmp_path: Path, kind: str
):
    write_task("a", test=SLOW)
    write_run(tmp_path, steps=4)
    run = tmp_path / "run"
    with reader(kind) as end:
        process = subprocess.Popen(
            [sys.executable, "-m", "plimsoll", "run", "night.toml", "--out", "run"],
            cwd=tmp_path,
            env=os.environ | {"TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=end,
            stderr=end,
            start_new_session=True,
        )
        os.close(end)
        wait_for(lambda: steps(run) or process.poll() is not None)
    assert process.wait(120) == 0
    assert json.loads((run / "summary.json").read_text())["done"] is True
    assert steps(run) == 4
    check_ledger(plimsoll, "run")


@pytest.mark.parametrize("command", ["eval", "validate"])
def test_without_a_reader_an_evaluation_completes_with_its_exit_status(
    write_task: Callable[..., Path], tmp_path: Path, command: str
):
    # The tests pass after the solution alone.
    test = "test -f /tmp/solved; echo $((1 - $?)) >/logs/verifier/reward.txt\n"
    write_task("a", test=test, solve="touch /tmp/solved")
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.closing(os.fdopen(writing, "wb")) as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "plimsoll", command, "tasks"],
            cwd=tmp_path,
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "summary.json").exists()


def test_a_closed_terminal_stops_a_run_in_order_despite_repeated_signals(
    write_task: Callable[..., Path], start: Start, plimsoll: Plimsoll, tmp_path: Path
):
    write_task("a", test=SLOW)
    write_run(tmp_path, steps=1000)
    with sighup_handler(signal.SIG_DFL):
        process = start("run", "night.toml", "--out", "run")
    wait_for(lambda: steps(tmp_path / "run"), process)
    for _ in range(3):
        process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGHUP, out + err
    assert "stopping: running trials have 1 s" in err
    assert "continue: plimsoll resume run" in out
    assert no_sandbox(tmp_path)
    check_ledger(plimsoll, "run")


def test_under_nohup_a_run_completes_after_its_terminal_is_gone(
    write_task: Callable[..., Path], start: Start, tmp_path: Path
):
    write_task("a", test=SLOW)
    write_run(tmp_path, steps=3)
    with sighup_handler(signal.SIG_IGN):
        process = start("run", "night.toml", "--out", "run")
    wait_for(lambda: steps(tmp_path / "run"), process)
    assert process.stdout is not None and process.stderr is not None
    for stream in (process.stdout, process.stderr):
        stream.close()
    process.send_signal(signal.SIGHUP)
    assert process.wait(120) == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["done"] is True


def test_a_second_sigterm_does_not_interrupt_the_cleanup(start: Start):
    process = start(python=("-c", CLEANS_UP))
    assert process.stdout is not None
    for said in ("running\n", "cleaning\n"):
        assert process.stdout.readline() == said
        process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert out == "clean\n"
    assert process.returncode == 128 + signal.SIGTERM
