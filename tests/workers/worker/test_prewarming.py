"""Prewarming: sandboxes of announced orders are ready, and no others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from helpers import HOST, write_task_folder
from plimsoll.config.file import Config
from plimsoll.core.errors import TaskError
from plimsoll.sandboxes.pool import pool as pool_module
from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.sandboxes.pool.stats import Meter, PoolStats
from plimsoll.sandboxes.protocol import Backend
from plimsoll.testing.faults import FaultyBackend
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Graded
from plimsoll.workers.messages import EnvironmentOptions, Kind, Order
from plimsoll.workers.worker import environment as environment_module
from plimsoll.workers.worker.environment import TrialEnvironment, trial_environment

TESTS = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"


class Worker:
    """An environment with real sandboxes, to which a test gives orders."""

    def __init__(self, environment: TrialEnvironment, folder: Path) -> None:
        self.environment = environment
        self.meter = Meter()
        self._folder = folder
        self._given = 0

    def kind(self, name: str) -> Kind:
        return Kind(str(self._folder / "tasks" / name), name)

    def expect(self, **coming: int) -> None:
        self.environment.expect(
            [self.kind(name) for name, count in coming.items() for _ in range(count)]
        )

    async def series(self, name: str, count: int) -> None:
        """Run one order after another, and announce the next during each."""
        for left in range(count - 1, -1, -1):
            async with asyncio.TaskGroup() as group:
                group.create_task(self.run(name))
                await asyncio.sleep(0)
                self.expect(**{name: min(1, left)})

    async def run(self, name: str) -> None:
        self._given += 1
        kind, ticket = self.kind(name), f"g/{self._given}"
        result = await self.environment.run(
            Order(
                ticket=ticket,
                task=kind.task,
                name=kind.name,
                attempt=self._given,
                folder=str(self._folder / "run" / "trials" / str(self._given)),
            )
        )
        assert isinstance(result.verdict, Graded), result
        if (report := self.environment.take_report()) is not None:
            self.meter.add(report.sandboxes)

    @property
    def stats(self) -> PoolStats:
        return self.meter.stats(Reuse.FRESH)


@pytest.fixture
def world(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> FaultyBackend:
    """Real sandboxes with reset, counted."""
    made = FaultyBackend(backend, resettable=True)
    monkeypatch.setattr(environment_module, "make_backend", lambda *_: made)
    monkeypatch.setattr(pool_module, "_RESET_WAIT_SECONDS", 60.0)
    return made


@asynccontextmanager
async def worker(folder: Path, reuse: str, *, concurrency: int = 1) -> AsyncIterator[Worker]:
    for name in ("a", "b"):
        files = {
            "instruction.md": "Do nothing.\n",
            "environment/Dockerfile": HOST,
            "tests/test.sh": TESTS,
        }
        # With different variables, so that no sandbox serves both.
        write_task_folder(folder / "tasks" / name, files, f"[environment.env]\nNAME = '{name}'\n")
    config = Config.model_validate(
        {
            "run": {"tasks": str(folder / "tasks"), "agent": "nop"},
            "workers": {"concurrency": concurrency},
            "pool": {"reuse": reuse},
        }
    )
    (folder / "run").mkdir()
    dumped = msgspec.Raw(config.model_dump_json().encode())
    options = EnvironmentOptions(config=dumped, directory=str(folder / "run"))
    async with trial_environment(options) as environment:
        yield Worker(environment, folder)


async def test_announced_orders_get_prewarmed_sandboxes(world: FaultyBackend, tmp_path: Path):
    async with worker(tmp_path, "fresh") as at_work:
        await at_work.series("a", 6)
        assert at_work.stats.hits + at_work.stats.cold_starts == 6
        assert at_work.stats.hits >= 4
        assert len(world.started) == 6, "every started sandbox was used"
    assert not world.alive


async def test_unannounced_orders_get_no_prewarmed_sandbox(world: FaultyBackend, tmp_path: Path):
    async with worker(tmp_path, "fresh") as at_work:
        for _ in range(3):
            await at_work.run("a")
        assert (at_work.stats.hits, at_work.stats.cold_starts) == (0, 3)


async def test_under_reset_orders_of_one_task_share_sandboxes(world: FaultyBackend, tmp_path: Path):
    async with worker(tmp_path, "reset") as at_work:
        await at_work.series("a", 8)
        assert len(world.started) <= 3
        assert world.resets >= 5
        await until(lambda: not world.alive)  # no more orders are expected
    assert not world.alive


async def test_a_taken_sandbox_is_not_prewarmed_again(world: FaultyBackend, tmp_path: Path):
    async with worker(tmp_path, "fresh", concurrency=2) as at_work:
        await at_work.run("a")
        at_work.expect(a=2)
        await until(lambda: len(world.alive) == 2)
        await at_work.run("a")
        # Without a new announcement: the worker itself counts the order down.
        await until(lambda: len(world.alive) == 1)
        await at_work.run("a")
        await until(lambda: not world.alive)
        assert (at_work.stats.hits, len(world.started)) == (2, 3)


async def test_prewarmed_sandboxes_of_withdrawn_orders_are_closed(
    world: FaultyBackend, tmp_path: Path
):
    async with worker(tmp_path, "fresh", concurrency=2) as at_work:
        await at_work.run("a")
        at_work.expect(a=2)
        await until(lambda: len(world.alive) == 2)
        at_work.expect()
        await until(lambda: not world.alive)


@pytest.mark.parametrize("reuse", ["fresh", "reset"])
async def test_a_new_forecast_closes_sandboxes_of_earlier_tasks(
    world: FaultyBackend, tmp_path: Path, reuse: str
):
    async with worker(tmp_path, reuse, concurrency=2) as at_work:
        for name in ("a", "b"):
            await at_work.run(name)
        at_work.expect(a=2)
        await until(lambda: len(world.alive) == 2)
        at_work.expect(b=1)
        await until(lambda: len(world.alive) == 1)
        assert world.started[-1].env["NAME"] == "b"


async def test_an_order_that_ends_without_a_lease_leaves_no_prewarmed_sandbox(
    world: FaultyBackend, tmp_path: Path
):
    async with worker(tmp_path, "fresh") as at_work:
        await at_work.run("a")
        at_work.expect(a=1)
        await until(lambda: len(world.started) == 2 and len(world.alive) == 1)
        trial = asyncio.create_task(at_work.run("a"))
        await asyncio.sleep(0)
        trial.cancel()
        await asyncio.gather(trial, return_exceptions=True)
        await until(lambda: not world.alive)


async def test_closing_the_environment_closes_prewarmed_sandboxes(
    world: FaultyBackend, tmp_path: Path
):
    async with worker(tmp_path, "fresh", concurrency=3) as at_work:
        await at_work.run("a")
        world.start_delay = 0.2
        at_work.expect(a=3)
        await until(lambda: len(world.started) == 4)
    assert not world.alive


async def test_an_unreadable_task_fails_only_its_own_trial(world: FaultyBackend, tmp_path: Path):
    async with worker(tmp_path, "fresh") as at_work:
        await at_work.run("a")
        at_work.expect(gone=1, a=1)
        await until(lambda: world.alive)
        with pytest.raises(TaskError, match="gone"):
            await at_work.run("gone")


async def test_prewarmed_sandboxes_count_as_alive(world: FaultyBackend, tmp_path: Path):
    async with worker(tmp_path, "fresh", concurrency=2) as at_work:
        await at_work.run("a")
        at_work.expect(a=2)
        await until(lambda: at_work.environment.counts()["sandboxes"] == 2)


async def test_each_sandbox_warning_is_reported_once(
    world: FaultyBackend, tmp_path: Path, backend: Backend
):
    async with worker(tmp_path, "fresh") as at_work:
        at_work.environment.take_report()
        backend.warn("no limit on storage")  # type: ignore[attr-defined]
        report = at_work.environment.take_report()
        assert report is not None and report.warnings == ("no limit on storage",)
        assert at_work.environment.take_report() is None
