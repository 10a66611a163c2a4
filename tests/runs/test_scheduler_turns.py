"""A turn of the scheduler has the same cost for any number of running trials."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest
from rollout_runs import MakeConfig

from driven_scheduler import driven_scheduler
from plimsoll.config.file import Config
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.plan import Plan

WORKERS, GROUP = 4, 4


class Work:
    """Counts the instructions of all code that starts while it is entered."""

    def __init__(self) -> None:
        self.done = 0

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        self.done += event == "opcode"
        return self._trace


async def work_of_turns(config: Config, directory: RunDirectory, running: int) -> list[int]:
    """The instructions of turns, with one of `running` trials ended before each."""
    took: list[int] = []
    async with driven_scheduler(Plan.make(config), directory) as driven:
        await driven.fill(running)
        driven.stop_prewarming()
        for _ in range(3 * GROUP):
            await driven.finish(driven.tickets[0])
            with Work() as work:
                await driven.turn()
            took.append(work.done)
    return sorted(took)


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer is active")
@pytest.mark.parametrize("reuse", ["none", "fresh"])
async def test_a_turn_does_not_iterate_over_all_running_trials(
    make_config: MakeConfig, tmp_path: Path, reuse: str
):
    medians: list[int] = []
    names = [f"coin-{number}" for number in range(10)]
    config = make_config(*names, group_size=GROUP, depth=2, max_staleness=4, steps=99)
    for running in (40, 800):
        run = {"batch_groups": running // GROUP}
        workers = {"number": WORKERS, "concurrency": running // WORKERS}
        made = config.model_copy(
            update={
                "run": config.run.model_copy(update=run),
                "workers": config.workers.model_copy(update=workers),
                "pool": config.pool.model_copy(update={"reuse": reuse}),
            }
        )
        directory = RunDirectory(tmp_path / f"run-{running}")
        directory.trials.mkdir(parents=True)
        took = await work_of_turns(made, directory, running)
        medians.append(took[len(took) // 2])
    few, many = medians
    assert many < 1.5 * few, f"{few:,} instructions with 40 running, {many:,} with 800"
