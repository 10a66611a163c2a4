"""Which pool a run has, and that a pool learns from the run what it will be asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import HOST, write_task_folder
from plimsoll.agents.nop import Nop
from plimsoll.config.sandboxes import PoolConfig
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.evaluation.eval_loop import Evaluation
from plimsoll.runs.evaluation.eval_run import trials_by
from plimsoll.runs.pooling import hints_for, make_pool, measured, usual_reuse
from plimsoll.runs.tickets import Ticket
from plimsoll.sandboxes.local.backend import LocalBackend
from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.sandboxes.protocol import Backend, Supplies
from plimsoll.tasks.task import Task
from plimsoll.testing.faults import FaultyBackend
from plimsoll.testing.waiting import until
from plimsoll.trials.artifacts import Bounds
from plimsoll.trials.sandbox_request import image_source

TESTS = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"


def nop(name: str) -> Nop:
    return Nop()


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Task]:
    def write(name: str, toml: str = "", dockerfile: str = HOST) -> Task:
        files = {
            "instruction.md": "Do nothing.\n",
            "environment/Dockerfile": dockerfile,
            "tests/test.sh": TESTS,
        }
        return write_task_folder(tmp_path / "tasks" / name, files, toml)

    return write


def test_what_was_asked_for_comes_before_the_config_and_that_before_what_is_usual():
    backend = LocalBackend()

    def reuse(asked: str | None, config: PoolConfig) -> Reuse:
        return make_pool(backend, config, reuse=asked, concurrency=2).options.reuse

    assert reuse(None, PoolConfig()) is Reuse.NONE
    assert reuse(None, PoolConfig(reuse="reset")) is Reuse.RESET
    assert reuse("fresh", PoolConfig(reuse="reset")) is Reuse.FRESH
    assert usual_reuse("docker") is Reuse.FRESH


def test_the_config_bounds_the_pool():
    config = PoolConfig(reuse="reset", uses=7, ahead=1)
    options = make_pool(LocalBackend(), config, reuse=None, concurrency=4).options
    assert (options.uses, options.most_idle, options.most_alive) == (7, 1, 5)
    usual = make_pool(LocalBackend(), PoolConfig(), reuse="fresh", concurrency=4).options
    assert (usual.uses, usual.most_idle, usual.most_alive) == (50, 4, 8)


async def test_trials_find_their_sandboxes_ready(
    backend: Backend, make: Callable[..., Task], directory: RunDirectory
):
    tasks = (make("a"), make("b", "[environment.env]\nA = '1'\n"))
    world = FaultyBackend(backend)
    pool = make_pool(world, PoolConfig(), reuse="fresh", concurrency=2)
    run = Evaluation(
        tasks,
        attempts=4,
        concurrency=2,
        trial=trials_by({"": Nop()}, pool, None, directory, bounds=Bounds()),
        directory=directory,
        hints=hints_for(pool, directory.name, None, nop),
    )
    async with pool:
        await run.run()
    assert run.summary.graded == 8
    stats = measured(pool.stats)
    assert stats is not None
    assert stats.hits + stats.cold_starts == 8
    assert stats.hits >= 4
    # Nothing was started in vain but what was under way when the last trial ended.
    assert len(world.started) == 8
    assert not world.alive
    assert world.max_alive <= 4


async def test_a_trial_that_ends_before_it_asks_for_a_sandbox_is_not_waited_for(
    backend: Backend, make: Callable[..., Task], directory: RunDirectory
):
    world = FaultyBackend(backend)
    pool = make_pool(world, PoolConfig(), reuse="fresh", concurrency=2)
    hints = hints_for(pool, directory.name, None, nop)
    assert hints is not None
    task = make("a")
    async with pool:
        ticket = Ticket(task, 1)
        hints.coming(ticket)
        await pool.build(image_source(task, Supplies()))
        await until(lambda: world.alive)
        hints.over(ticket)
        hints.over(ticket)
        await until(lambda: not world.alive)


async def test_a_task_that_cannot_be_had_is_left_to_its_own_trial(
    backend: Backend, make: Callable[..., Task], directory: RunDirectory
):
    pool = make_pool(FaultyBackend(backend), PoolConfig(), reuse="fresh", concurrency=2)
    hints = hints_for(pool, directory.name, None, nop)
    assert hints is not None
    ticket = Ticket(make("a", '[environment.env]\nA = "${NOT_SET_ANYWHERE}"\n'), 1)
    hints.coming(ticket)
    hints.over(ticket)


def test_without_a_pool_nothing_is_hinted_and_nothing_is_told(directory: RunDirectory):
    pool = make_pool(LocalBackend(), PoolConfig(), reuse="none", concurrency=2)
    assert hints_for(pool, directory.name, None, nop) is None
    assert measured(pool.stats) is None
