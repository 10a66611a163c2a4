"""Runs that tests start from the command line, and checks of their processes and files."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import marked
from plimsoll.ledger.audit import Auditor
from plimsoll.ledger.journal.journal import Journal

__all__ = [
    "Plimsoll",
    "Start",
    "check_ledger",
    "kill",
    "no_sandbox",
    "prompts",
    "rows",
    "run_to_end",
    "wait_for",
    "wait_until_gone",
    "write_run",
]

Plimsoll = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


def write_run(folder: Path, **run: object) -> Path:
    """Write a config for a run of the tasks in `tasks`, with sandboxes in `home`."""
    settings = {"agent": "oracle", "group_size": 2, "batch_groups": 2, "steps": 3, **run}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    file = folder / "night.toml"
    file.write_text(
        '[run]\ntasks = "tasks"\n'
        + "\n".join(lines)
        + f'\n[workers]\nconcurrency = 2\ngrace_seconds = 1\n[local]\nhome = "{folder}/home"\n'
    )
    return file


def wait_for(
    holds: Callable[[], object],
    process: subprocess.Popen[str] | None = None,
    *,
    within: float = 240,
) -> None:
    """Wait until a condition holds. Fail with the output of `process` if it ends before."""
    deadline = time.monotonic() + within
    while not holds():
        if process is not None and process.poll() is not None:
            pytest.fail("\n".join(process.communicate()))
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.02)


def wait_until_gone(mark: str, word: str, *, within: float = 240) -> None:
    """Wait until no marked process has a word in its command line.

    On a timeout, fail with the threads of the remaining processes.
    """
    deadline = time.monotonic() + within
    while left := {pid: what for pid, what in marked(mark).items() if word in what}:
        if time.monotonic() > deadline:
            pytest.fail(
                "\n".join(
                    f"still runs: {pid} {what}\n{_threads(pid)}" for pid, what in left.items()
                )
            )
        time.sleep(0.02)


def _threads(pid: int) -> str:
    """The threads of a process: name, state, and the kernel function that each waits in."""
    lines: list[str] = []
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            name, waits = ((folder / file).read_text().strip() for file in ("comm", "wchan"))
            lines.append(f"  {name} {state} {waits}")
    return "\n".join(lines)


def kill(process: "subprocess.Popen[str]", mark: str) -> None:
    """Kill a run and its workers at once, and wait until no marked process is left."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not marked(mark))


def run_to_end(start: Start, *args: str) -> dict[str, Any]:
    """Run a command to its end, and return its JSON output. The time limit is generous."""
    process = start(*args, "--json")
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    return json.loads(out)


def prompts(run: Path) -> list[int]:
    """The prompts of all committed batches, from the ledger."""
    journal, auditor = Journal.open(run / "ledger.db"), Auditor()
    for _, event in journal.read():
        auditor.take(event)
    journal.close()
    return [prompt for batch in auditor.prompts() for prompt in batch]


def rows(run: Path) -> list[dict[str, object]]:
    path = run / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def no_sandbox(folder: Path) -> bool:
    return not any((folder / "home/sandboxes").iterdir())


def check_ledger(plimsoll: Plimsoll, run: str) -> None:
    ended = plimsoll("ledger", run, "--check")
    assert ended.returncode == 0, ended.stdout
