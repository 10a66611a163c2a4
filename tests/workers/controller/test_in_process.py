"""The worker of this process, which runs the trials of small evaluations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from marking_environment import MarkingEnvironment, marking
from worker_client import marking_spec

from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Graded, Verdict, Void
from plimsoll.workers.controller import in_process
from plimsoll.workers.controller.in_process import InProcessWorker
from plimsoll.workers.messages import EnvironmentOptions, Kind, Order
from plimsoll.workers.worker.environment import OnPhase

STOPPED = Void(Cause.CANCELLED, "the run is being stopped")
A = Kind("a", "t")


@pytest.fixture
async def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InProcessWorker]:
    """A worker with four slots. Its environment writes marker files."""

    @asynccontextmanager
    async def environment(
        options: EnvironmentOptions, on_phase: OnPhase
    ) -> AsyncIterator[MarkingEnvironment]:
        async with marking(options) as made:
            yield made

    monkeypatch.setattr(in_process, "trial_environment", environment)
    async with InProcessWorker(marking_spec(tmp_path).options, 4) as made:
        yield made


def start(
    worker: InProcessWorker, ticket: str, task: str, folder: Path | str = ""
) -> "asyncio.Task[Verdict]":
    """Give an order to the worker. The task returns its verdict."""

    async def verdict() -> Verdict:
        order = Order(ticket=ticket, task=task, name="t", attempt=1, folder=str(folder))
        return (await worker.run(order)).verdict

    return asyncio.ensure_future(verdict())


async def running(worker: InProcessWorker, number: int = 1) -> None:
    await until(lambda: worker.free == worker.slots - number)
    await asyncio.sleep(0)  # the trial's task takes its first step


async def test_an_exception_of_a_trial_voids_it_alone_and_its_traceback_is_stored(
    worker: InProcessWorker, tmp_path: Path
):
    good = start(worker, "good", "until go")
    bad = await start(worker, "bad", "raise overboard", tmp_path / "trial")
    assert isinstance(bad, Void)
    assert (bad.cause, bad.reason) == (Cause.BUG, "RuntimeError: overboard")
    assert [fact.where for fact in bad.evidence] == ["bug.txt"]
    assert "Traceback" in (tmp_path / "trial/bug.txt").read_text()
    assert worker.free == 3
    (tmp_path / "go").touch()
    assert isinstance(await good, Graded)
    assert isinstance(await start(worker, "later", "sleep 0"), Graded)
    assert worker.free == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_is_not_a_bug(worker: InProcessWorker, tmp_path: Path):
    verdict = await start(worker, "t", "overfill words", tmp_path / "trial")
    assert isinstance(verdict, Void)
    assert verdict.cause is Cause.SANDBOX


async def test_a_cancelled_trial_is_void_after_its_clean_up(
    worker: InProcessWorker, tmp_path: Path
):
    verdict = start(worker, "t", "stubborn 0.05")
    await running(worker)
    worker.cancel("t", "too old")
    worker.cancel("unknown", "too old")
    assert await verdict == Void(Cause.CANCELLED, "too old")
    assert (tmp_path / "t.cleaned").exists()
    assert worker.free == 4


async def test_draining_lets_running_trials_finish_and_takes_no_more(
    worker: InProcessWorker, tmp_path: Path
):
    verdict = start(worker, "t", "until go")
    await running(worker)
    draining = asyncio.create_task(worker.drain(60))
    await until(lambda: worker.slots == 0)
    assert worker.free == 0
    late = await start(worker, "late", "sleep 0")
    assert isinstance(late, Void)
    assert late.cause is Cause.LOST
    assert not verdict.done()
    (tmp_path / "go").touch()
    await draining
    assert isinstance(await verdict, Graded)


async def test_trials_that_outlast_the_grace_of_a_drain_are_cancelled_and_cleaned_up(
    worker: InProcessWorker, tmp_path: Path
):
    verdicts = [start(worker, f"t{n}", "stubborn 0.05") for n in range(2)]
    await running(worker, 2)
    await worker.drain(0)
    # Cleaned up before it returns: the run then closes what its trials use.
    assert {file.name for file in tmp_path.iterdir()} == {"t0.cleaned", "t1.cleaned"}
    assert await asyncio.gather(*verdicts) == [STOPPED] * 2


async def test_a_draining_worker_prewarms_nothing(worker: InProcessWorker, tmp_path: Path):
    expects = tmp_path / "expects"
    verdict = start(worker, "t", "until go")
    worker.expect([A, A, A])
    await until(expects.exists)
    assert expects.read_text() == "3"
    worker.expect([A, A])  # in flight when the drain begins
    draining = asyncio.create_task(worker.drain(60))
    await until(lambda: expects.read_text() == "0")
    worker.expect([A, A, A])
    (tmp_path / "go").touch()
    await draining
    await verdict
    assert expects.read_text() == "0"


async def test_leaving_the_worker_cancels_its_trials_and_takes_the_last_report(
    worker: InProcessWorker, tmp_path: Path
):
    verdict = start(worker, "t", "stubborn 0.05")
    await running(worker)
    await worker.__aexit__(None, None, None)
    assert await verdict == STOPPED
    assert {file.name for file in tmp_path.iterdir()} == {"t.cleaned", "left"}
    # Of the closing of the environment: sandboxes that could not be removed.
    assert worker.reports.warnings == ["its environment was left"]


async def test_reports_are_taken_while_trials_run(worker: InProcessWorker, tmp_path: Path):
    verdict = start(worker, "t", "until go")
    (tmp_path / "news").write_text("no limit on storage")
    await until(lambda: worker.reports.warnings == ["no limit on storage"])
    (tmp_path / "go").touch()
    await verdict
