"""The cost of a scheduler's turn with many trials in flight, for `bench_ledger.py`."""

import random
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from plimsoll.config.file import load_config
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.plan import Plan

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from driven_scheduler import driven_scheduler

__all__ = ["Turn", "scheduler_turn"]

WORKERS, GROUP, TASKS = 50, 8, 200


@dataclass(frozen=True, slots=True)
class Turn:
    """The cost of a turn, in milliseconds of CPU of its thread."""

    running: int
    median: float
    mean: float
    """Includes the turns that announce the next trials to workers."""


def _plan(folder: Path, running: int) -> Plan:
    for number in range(TASKS):
        task = folder / "tasks" / f"task-{number}"
        task.mkdir(parents=True)
        (task / "task.toml").write_text('schema_version = "1.4"\n')
        (task / "instruction.md").write_text("Do nothing.\n")
    (folder / "run.toml").write_text(
        f"""[run]
tasks = "tasks"
agent = "nop"
group_size = {GROUP}
batch_groups = {running // GROUP}
depth = 2
max_staleness = 4
steps = 1000
canary_every = 0
[workers]
number = {WORKERS}
concurrency = {running // WORKERS}
[pool]
reuse = "fresh"
"""
    )
    return Plan.make(load_config(folder / "run.toml"))


async def scheduler_turn(folder: Path, running: int, turns: int) -> Turn:
    """Measure turns with many trials in flight. Before each, one trial ends and another starts."""
    plan = _plan(folder, running)
    directory = RunDirectory.create(folder / "run", now=datetime.now())
    took: list[float] = []
    pick = random.Random(0)
    async with driven_scheduler(plan, directory) as driven:
        await driven.fill(running)
        for _ in range(turns):
            await driven.finish(pick.choice(driven.tickets))
            began = time.thread_time()
            await driven.turn()
            took.append(1000 * (time.thread_time() - began))
    return Turn(running, statistics.median(took), statistics.mean(took))
