"""The pool of a worker: precedence of the reuse setting, and backends without prewarming."""

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import HOST, write_task_folder
from plimsoll.agents.nop import Nop
from plimsoll.config.sandboxes import PoolConfig
from plimsoll.sandboxes.local.backend import LocalBackend
from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.task import Task
from plimsoll.testing.faults import FaultyBackend
from plimsoll.trials.sandbox_request import agent_sandbox, labels_for
from plimsoll.workers.messages import Kind, Order
from plimsoll.workers.worker.prewarming import Prewarming
from plimsoll.workers.worker.sandbox_pool import make_pool, measured, usual_reuse

TESTS = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"


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


def test_the_config_takes_precedence_over_defaults():
    backend = LocalBackend()

    def reuse(config: PoolConfig) -> Reuse:
        return make_pool(backend, config, concurrency=2).options.reuse

    assert reuse(PoolConfig()) is Reuse.NONE
    assert reuse(PoolConfig(reuse="reset")) is Reuse.RESET
    assert usual_reuse("docker") is Reuse.FRESH


def test_the_config_bounds_the_pool():
    config = PoolConfig(reuse="reset", uses=7, ahead=1)
    options = make_pool(LocalBackend(), config, concurrency=4).options
    assert (options.uses, options.max_idle, options.max_alive) == (7, 1, 5)
    usual = make_pool(LocalBackend(), PoolConfig(reuse="fresh"), concurrency=4).options
    assert (usual.uses, usual.max_idle, usual.max_alive) == (50, 4, 8)


async def test_without_a_pool_nothing_is_prewarmed_or_measured(
    make: Callable[..., Task], backend: Backend
):
    task = make("a")
    loaded: list[Kind] = []

    async def load(kind: Kind) -> Task:
        loaded.append(kind)
        return task

    counted = FaultyBackend(backend)
    async with make_pool(counted, PoolConfig(reuse="none"), concurrency=2) as pool:
        await pool.build(agent_sandbox(task, labels_for(task, "run", 1), None).source)
        prewarming = Prewarming(pool, "run", None, lambda _: Nop(), load)
        order = Order(ticket="t", task=str(task.path), name=task.name, attempt=1, folder="")
        prewarming.expect([order.kind, order.kind])
        assert await prewarming.begin(order) is task
        prewarming.over(order)
        await prewarming.close()
        assert loaded == [order.kind]
        assert not counted.started
        assert measured(pool.stats) is None


async def test_a_task_without_a_sandbox_fails_only_its_own_trial(make: Callable[..., Task]):
    task = make("a", '[environment.env]\nA = "${NOT_SET_ANYWHERE}"\n')
    pool = make_pool(LocalBackend(), PoolConfig(reuse="fresh"), concurrency=2)

    async def load(_: Kind) -> Task:
        return task

    prewarming = Prewarming(pool, "run", None, lambda _: Nop(), load)
    order = Order(ticket="t", task=str(task.path), name=task.name, attempt=1, folder="")
    prewarming.expect([order.kind])
    assert await prewarming.begin(order) is task
    prewarming.over(order)
    await prewarming.close()
