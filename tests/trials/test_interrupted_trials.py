"""Cancelled trials, and trials whose sandbox dies."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from helpers import PlainAgent, check_void, long_time, processes_with
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause

PASS = "echo 1 > /logs/verifier/reward.txt\n"


class Waiting(PlainAgent):
    """An agent that reports its start and then runs for a long time."""

    name = "waiting"

    def __init__(self) -> None:
        self.working = asyncio.Event()
        self.time = long_time()

    async def run(self, assignment):
        self.working.set()
        await assignment.sandbox.exec(f"sleep {self.time}")
        raise AssertionError("it was to be stopped")


def sandboxes(home: Path) -> list[str]:
    return [path.name for path in (home / "sandboxes").iterdir()]


async def process_with(word: str) -> int:
    async with asyncio.timeout(60):
        while True:
            if found := processes_with(word):
                return found[0]
            await asyncio.sleep(0.01)


async def test_a_cancelled_trial_is_void_and_leaves_no_sandbox(write_task, run, home, tmp_path):
    agent = Waiting()
    trial = asyncio.create_task(run(write_task(), agent))
    await asyncio.wait_for(agent.working.wait(), 60)
    await asyncio.sleep(0.05)
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    verdict = (tmp_path / "trials/task.1/verdict.json").read_text()
    assert '"cause": "cancelled"' in verdict
    await until(lambda: sandboxes(home) == [])
    assert processes_with(agent.time) == []


async def test_a_cancelled_trial_that_cannot_write_its_verdict_is_cancelled(
    write_task, run, tmp_path
):
    agent = Waiting()
    trial = asyncio.create_task(run(write_task(), agent))
    await asyncio.wait_for(agent.working.wait(), 60)
    (tmp_path / "trials/task.1/.verdict.json").mkdir()
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial


async def test_a_trial_cancelled_while_it_is_graded_leaves_nothing(write_task, run, home, tmp_path):
    time = long_time()
    toml = '[verifier]\nenvironment_mode = "separate"\n'
    trial = asyncio.create_task(run(write_task(test=f"{PASS}sleep {time}", toml=toml)))
    await process_with(time)
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert '"cause": "cancelled"' in (tmp_path / "trials/task.1/verdict.json").read_text()
    await until(lambda: sandboxes(home) == [])
    assert processes_with(time) == []


async def test_a_trial_cancelled_while_its_image_is_built_leaves_nothing(
    write_task, run, home, tmp_path
):
    time = long_time()
    task = write_task(dockerfile=f"FROM host\nRUN sleep {time}\n")
    trial = asyncio.create_task(run(task))
    await process_with(time)
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert '"cause": "cancelled"' in (tmp_path / "trials/task.1/verdict.json").read_text()
    await until(lambda: sandboxes(home) == [])
    assert processes_with(time) == []


async def test_a_sandbox_that_dies_during_the_agent_voids_the_trial(write_task, run, home):
    agent = Waiting()
    trial = asyncio.create_task(run(write_task(), agent))
    await asyncio.wait_for(agent.working.wait(), 60)
    os.kill(init_of(await process_with(agent.time)), signal.SIGKILL)
    ran = await asyncio.wait_for(trial, 60)
    check_void(ran, Cause.SANDBOX, "init")
    await until(lambda: sandboxes(home) == [])


def init_of(process: int) -> int:
    """The init process of the PID namespace of a process."""
    while True:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        fields = dict(line.split(":\t", 1) for line in status)
        if fields["NSpid"].split()[-1] == "1":
            return process
        process = int(fields["PPid"])
