"""Rollouts: the ledger's rules with real workers and scripted trials."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rollout_runs import MakeConfig, all_batches, check_audit, prompts, rows
from scripted_workers import ONE, ScriptedWorkers

from plimsoll.cli.views.status import progress_line
from plimsoll.config.file import Config
from plimsoll.core.errors import LedgerError, UsageError, WorkerError
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.report import make_report
from plimsoll.runs import session, worker_setup
from plimsoll.runs.batches import Batch
from plimsoll.runs.files.status import read_status
from plimsoll.runs.files.steps import StepReport, TrainerFigures, last_steps
from plimsoll.runs.rollouts import Rollouts
from plimsoll.testing.waiting import until
from plimsoll.testing.workers import IdleEngine
from plimsoll.trials.verdicts import Verdict
from plimsoll.workers.engines.process import ProcessEngine, WorkerProcess
from plimsoll.workers.engines.protocol import Exit, StartRequest
from plimsoll.workers.messages import Order


async def test_each_prompt_is_used_once_and_the_last_step_leaves_no_extra_rollout(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", "coin-c", steps=4, depth=1)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        batches = await all_batches(rollouts)
    assert sorted(prompts(batches)) == list(range(8))
    assert [batch.step for batch in batches] == [1, 2, 3, 4]
    summary = rollouts.summary
    assert (summary.done, summary.steps, summary.trials, summary.void) == (True, 4, 16, {})
    assert all(batch.age <= 2 for batch in batches)
    for group in (group for batch in batches for group in batch.groups):
        assert all(reward in (0.0, 1.0) for reward in group.rewards)
    assert len(rows(tmp_path / "run")) == 16
    assert not (tmp_path / "run/controller.json").exists()
    check_audit(tmp_path / "run")


async def test_a_run_ends_after_its_epochs_and_reports_leftover_groups(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", "coin-c", epochs=1)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        batches = await all_batches(rollouts)
    assert len(batches) == 1
    assert (rollouts.summary.done, rollouts.summary.left_over) == (True, 1)


async def test_removing_a_task_mid_epoch_neither_repeats_nor_skips_others(
    make_config: MakeConfig, tmp_path: Path
):
    names = {f"coin-{number}" for number in range(16)}
    config = make_config(*names, epochs=1, batch_groups=1, depth=0, max_staleness=0)
    used: list[str] = []
    async with Rollouts(config, out=tmp_path / "run", trains=False) as rollouts:
        async for batch in rollouts.batches():
            used += [group.task for group in batch.groups]
            if len(used) == 8:
                # After the commit another group would start, whose task must exist.
                rollouts.stop()
            await rollouts.commit(batch)
    shutil.rmtree(tmp_path / "tasks" / used[0])
    async with Rollouts(config, out=tmp_path / "run", trains=False) as rollouts:
        later = await all_batches(rollouts)
    used += [group.task for batch in later for group in batch.groups]
    assert sorted(used) == sorted(names)
    assert rollouts.summary.ended == "all epochs are done"
    check_audit(tmp_path / "run")


async def test_a_batch_must_be_committed_before_the_next_and_only_once(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", steps=3)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        batches = rollouts.batches()
        batch = await anext(batches)
        with pytest.raises(LedgerError, match="not committed"):
            await anext(batches)
        await rollouts.commit(batch)
        with pytest.raises(LedgerError, match="it was committed before"):
            await rollouts.commit(batch)


async def test_trials_of_a_dead_worker_are_retried(make_config: MakeConfig, tmp_path: Path):
    config = make_config("lost-a", "coin-b", steps=3)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        batches = await all_batches(rollouts)
    assert len(batches) == 3
    assert rollouts.summary.void["lost"] >= 1
    assert all(r is not None for b in batches for g in b.groups for r in g.rewards)
    check_audit(tmp_path / "run")


async def test_an_ungradable_task_is_excluded_and_never_in_a_batch(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", "void-c", steps=4, requeues=0)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        batches = await all_batches(rollouts)
    assert {group.task for batch in batches for group in batch.groups} == {"coin-a", "coin-b"}
    assert set(rollouts.summary.quarantined) == {"void-c"}
    assert rollouts.summary.done
    check_audit(tmp_path / "run")


async def test_a_run_whose_trials_are_all_void_is_stopped_by_the_breaker(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("void-a", "void-b", steps=100, requeues=50)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        assert await all_batches(rollouts) == []
    summary = rollouts.summary
    assert (summary.done, summary.ended) == (False, "the breaker tripped")
    assert summary.breaker is not None
    assert summary.breaker.rule == "dead-start"
    assert any("plimsoll resume" in line for line in summary.breaker.go_on)
    assert summary.breaker.look is not None


async def test_trials_of_an_abandoned_group_are_cancelled(make_config: MakeConfig, tmp_path: Path):
    config = make_config("half-a", steps=1, requeues=1, group_policy="void")
    async with asyncio.timeout(120), Rollouts(config, out=tmp_path / "run") as rollouts:
        assert await all_batches(rollouts) == []
    assert "no task is left: all are excluded" in rollouts.summary.ended
    assert rollouts.summary.void["task"] >= 2
    check_audit(tmp_path / "run")


async def test_a_run_ends_with_the_reason_when_every_task_is_excluded(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("void-a", steps=3, requeues=0)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        assert await all_batches(rollouts) == []
    assert not rollouts.summary.done
    assert "no task is left: all are excluded" in rollouts.summary.ended


async def test_a_failed_canary_stops_the_run_and_unconfirmed_grades_are_never_used(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("sick-a", "sick-b", steps=50, canary_every=6)
    for name in ("sick-a", "sick-b"):
        (tmp_path / "tasks" / name / "solution").mkdir()
        (tmp_path / "tasks" / name / "solution/solve.sh").write_text("true\n")
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        await all_batches(rollouts)
    summary = rollouts.summary
    assert summary.breaker is not None
    assert summary.breaker.rule == "canary"
    report = make_report(tmp_path / "run", check=True, task=None)
    assert report.problems == []
    assert report.groups.buffered == 0
    canaries = (tmp_path / "run/canaries.jsonl").read_text().splitlines()
    assert len(canaries) == 1


async def test_a_stopped_run_cancels_trials_after_the_grace_period_and_can_resume(
    make_config: MakeConfig, tmp_path: Path
):
    # If it counted against them, both tasks would be excluded.
    config = make_config("waits-a", "waits-b", steps=2, group_policy="void", requeues=0)
    run = tmp_path / "run"
    async with Rollouts(config, out=run, trains=False) as rollouts:
        batches = rollouts.batches()
        waiting = asyncio.create_task(anext(batches, None))
        await until(lambda: rollouts.status().running == 4, 20)
        rollouts.stop()
        assert await waiting is None
    assert (rollouts.summary.done, rollouts.summary.void) == (False, {"cancelled": 4})
    check_audit(run)
    (run / "go").touch()
    async with Rollouts(config, out=run, trains=False) as rollouts:
        assert rollouts.restored.lost == 0
        assert sorted(prompts(await all_batches(rollouts))) == [0, 1, 2, 3]
    check_audit(run)


async def test_a_trainer_resumes_from_its_last_checkpoint(make_config: MakeConfig, tmp_path: Path):
    config = make_config("coin-a", "coin-b", steps=4)
    run = tmp_path / "run"
    used: list[list[int]] = []

    def save(number: int) -> Callable[[Path], None]:
        return lambda folder: (folder / "weights").write_text(str(number)) and None

    async with Rollouts(config, out=run) as rollouts:
        assert rollouts.checkpoint is None
        async for batch in rollouts.batches():
            used.append([group.prompt for group in batch.groups])
            await rollouts.commit(batch, save(batch.step) if batch.step == 1 else None)
            if batch.step == 3:
                break
    async with Rollouts(config, out=run) as rollouts:
        assert rollouts.checkpoint is not None
        assert (rollouts.checkpoint / "weights").read_text() == "1"
        assert (rollouts.version.lineage, rollouts.version.number) == (1, 1)
        again = await all_batches(rollouts)
    assert sorted(used[0] + prompts(again)) == list(range(8))
    check_audit(run)


async def test_a_run_without_training_resumes_without_undoing_steps(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", steps=4)
    run = tmp_path / "run"
    used: list[Batch] = []
    async with Rollouts(config, out=run, trains=False) as rollouts:
        async for batch in rollouts.batches():
            used.append(batch)
            await rollouts.commit(batch)
            if batch.step == 2:
                break
        with pytest.raises(UsageError, match="no weights to save"):
            await rollouts.commit(await anext(rollouts.batches()), lambda _: None)
    async with Rollouts(config, out=run, trains=False) as rollouts:
        used += await all_batches(rollouts)
    assert sorted(prompts(used)) == list(range(8))
    assert [batch.step for batch in used] == [1, 2, 3, 4]
    check_audit(run)


async def test_a_run_has_one_controller_at_a_time(make_config: MakeConfig, tmp_path: Path):
    config = make_config("waits-a", steps=2)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        before = (tmp_path / "run/controller.json").read_bytes()
        with pytest.raises(LedgerError, match="is held by process"):
            async with Rollouts(config, out=tmp_path / "run"):
                pass
        assert (tmp_path / "run/controller.json").read_bytes() == before
        rollouts.stop()


async def test_a_rejected_second_controller_changes_nothing(
    make_config: MakeConfig, tmp_path: Path
):
    run = tmp_path / "run"
    async with Rollouts(make_config("waits-a", steps=2), out=run) as rollouts:
        with (run / "results.jsonl").open("a") as file:
            file.write('{"half of')
        before = {path.name: path.read_bytes() for path in run.glob("*.*l")}
        config = rollouts.plan.config
        changed = config.model_copy(update={"run": config.run.model_copy(update={"steps": 9})})
        with pytest.raises(LedgerError, match="is held by process"):
            async with Rollouts(changed, out=run):
                pass
        assert {path.name: path.read_bytes() for path in run.glob("*.*l")} == before
        rollouts.stop()


async def test_a_failed_start_leaves_no_new_files(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = make_config("coin-a", "coin-b", steps=2)
    run = tmp_path / "run"
    run.mkdir()
    (run / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setenv("PLIMSOLL_STAND_IN", "nowhere:named")
        for _ in range(2):
            with pytest.raises(WorkerError, match="no stand-in nowhere:named"):
                async with Rollouts(config, out=run):
                    pass
            assert [path.name for path in run.iterdir()] == ["notes.txt"]
    async with Rollouts(config, out=run, trains=False) as rollouts:
        await all_batches(rollouts)
    # A run that has started is kept, with the reason for its stop.
    with monkeypatch.context() as patch:
        patch.setenv("PLIMSOLL_STAND_IN", "nowhere:named")
        with pytest.raises(WorkerError):
            async with Rollouts(config, out=run, trains=False):
                pass
    status = read_status(run / "status.json")
    assert (status.state, status.step) == ("ended", 2)
    assert "a worker cannot start" in status.why
    check_audit(run)


async def test_the_config_sets_the_start_timeout_of_workers(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_setup, "make_engine", lambda *_: IdleEngine())
    config = make_config("coin-a", steps=1)
    workers = config.workers.model_copy(update={"start_seconds": 0.01})
    said = r"did not answer within 0\.01 s of its placement; .* raise \[workers\] start_seconds"
    with pytest.raises(WorkerError, match=said):
        async with Rollouts(config.model_copy(update={"workers": workers}), out=tmp_path / "run"):
            pass


class LateWorker:
    """A worker whose host comes late, as on a growing cluster."""

    where = "waits for a node"

    def __init__(self, request: StartRequest, host: asyncio.Event) -> None:
        self.worker = request.invitation.worker
        self.is_placed = False
        self._engine = ProcessEngine()
        self._placing = asyncio.create_task(self._start_late(request, host))

    async def _start_late(self, request: StartRequest, host: asyncio.Event) -> WorkerProcess:
        await host.wait()
        self.is_placed = True
        return await self._engine.start(request)

    async def ended(self) -> Exit:
        return await (await asyncio.shield(self._placing)).ended()

    async def kill(self) -> None:
        await (await asyncio.shield(self._placing)).kill()


class LateEngine(ProcessEngine):
    def __init__(self) -> None:
        super().__init__()
        self.host_is_there = asyncio.Event()

    async def start(self, request: StartRequest) -> LateWorker:
        return LateWorker(request, self.host_is_there)

    def describe_wait(self, workers: int) -> str:
        return f"waiting for a host for {workers} worker"


async def test_the_wait_for_a_workers_host_is_shown_and_does_not_end_the_run(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    engine = LateEngine()
    monkeypatch.setattr(worker_setup, "make_engine", lambda *_: engine)
    config = make_config("coin-a", "coin-b", steps=1)
    rollouts = Rollouts(config, out=tmp_path / "run", trains=False)
    running = asyncio.create_task(roll_out(rollouts))
    said = r"waiting for a host for 1 worker · \d+ s"
    await until(lambda: re.fullmatch(said, rollouts.doing) is not None, 60)
    file = tmp_path / "run/status.json"
    await until(lambda: file.exists() and read_status(file).workers_wait != "", 60)
    assert re.search(f"{said}$", progress_line(read_status(file)))
    engine.host_is_there.set()
    await running
    assert read_status(file).workers_wait == ""
    assert rollouts.summary.done


async def roll_out(rollouts: Rollouts) -> None:
    async with rollouts:
        await all_batches(rollouts)


async def test_tasks_with_equal_folder_names_stay_distinct(make_config: MakeConfig, tmp_path: Path):
    config = make_config("one/coin", "two/coin", steps=2)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        await all_batches(rollouts)
    names = (tmp_path / "run/names").read_text().split()
    assert set(names) == set(rollouts.plan.tasks)
    assert len(rollouts.plan.tasks) == 2


async def test_the_error_that_ended_a_run_is_raised_without_another_batch_request(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("dies-a", steps=2, group_size=1, batch_groups=1)
    with pytest.raises(WorkerError, match="the ship went down"):
        async with Rollouts(config, out=tmp_path / "run") as rollouts:
            await until(lambda: rollouts._loop is not None and rollouts._loop.done(), 60)
    assert "workers die repeatedly" in read_status(tmp_path / "run/status.json").why


async def test_the_figures_of_a_trainer_of_ones_own_are_in_the_line_of_its_step(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def trial(order: Order) -> Verdict:
        return ONE

    monkeypatch.setattr(session, "make_workers", lambda *_, **__: ScriptedWorkers(trial, 4))
    update = StepReport(loss=0.25, tokens=8, samples=4, learning_rate=0.5, seconds=1.5)
    figures = TrainerFigures(update=update, update_seconds=2.0, read_seconds=0.5, untrainable=3)
    async with Rollouts(make_config("a", steps=2), out=tmp_path / "run") as rollouts:
        async for batch in rollouts.batches():
            await rollouts.commit(batch, figures=figures if batch.step == 1 else None)
    first, second = last_steps(tmp_path / "run/steps.jsonl", 9, up_to=9)
    assert (first.update, first.untrainable) == (update, 3)
    assert (first.seconds.update, first.seconds.read) == (2.0, 0.5)
    assert first.tokens_per_second is not None
    assert (second.update, second.untrainable, second.tokens_per_second) == (None, None, None)


async def test_undone_steps_are_not_reported(make_config: MakeConfig, tmp_path: Path):
    config = make_config("coin-a", "coin-b", steps=4)
    run = tmp_path / "run"
    async with Rollouts(config, out=run) as rollouts:
        async for batch in rollouts.batches():
            await rollouts.commit(batch)
            if batch.step == 3:
                break
    async with Rollouts(config, out=run) as rollouts:
        assert rollouts.status().rewards == []
        await all_batches(rollouts)
    assert len(rollouts.summary.rewards) == 4


async def test_workers_that_die_repeatedly_end_the_run_with_their_last_output(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("dies-a", steps=2, group_size=1, batch_groups=1)
    rollouts = Rollouts(config, out=tmp_path / "run")
    with pytest.raises(WorkerError, match="the ship went down"):
        async with rollouts:
            await all_batches(rollouts)
    assert not (tmp_path / "run/controller.json").exists()


async def test_a_slow_group_delays_the_others_by_at_most_its_slack(
    make_config: MakeConfig, tmp_path: Path
):
    names = ["waits-a", *(f"coin-{number}" for number in range(9))]
    seed = next(n for n in range(99) if DataOrder(names, seed=n).epoch(0)[0] == "waits-a")
    config = make_config(*names, steps=5, seed=seed, slack_seconds=0.3, max_staleness=2)
    run = tmp_path / "run"
    batches: list[Batch] = []
    async with Rollouts(config, out=run, trains=False) as rollouts:
        async for batch in rollouts.batches():
            batches.append(batch)
            await rollouts.commit(batch)
            if batch.step == 4:
                (run / "go").touch()
    assert rollouts.summary.done
    (slow,) = (group for group in batches[-1].groups if group.task == "waits-a")
    # It resumed with newer weights: its earlier tokens are not trained on.
    for member in slow.members:
        assert member.head is not None
        assert member.head.number >= 4 - 2
    assert batches[-1].age <= 2
    check_audit(run)


def test_a_config_without_tasks_or_an_end_is_rejected(make_config: MakeConfig, tmp_path: Path):
    with pytest.raises(UsageError, match=r"\[run\] steps"):
        Rollouts(make_config("coin-a"))
    with pytest.raises(UsageError, match=r"\[run\] tasks"):
        Rollouts(Config())


def test_unusable_storage_is_rejected_before_anything_starts(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", steps=1)
    storage = config.storage.model_copy(update={"trajectories": "nowhere://bucket"})
    with pytest.raises(UsageError, match="nowhere://bucket cannot be used"):
        Rollouts(config.model_copy(update={"storage": storage}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_importing_rollouts_imports_neither_torch_nor_ray():
    script = (
        "import sys, plimsoll; before = set(sys.modules); plimsoll.Rollouts; "
        "from plimsoll.config.file import Config; "
        "print({'torch', 'ray'} & set(sys.modules), 'plimsoll.runs' in before)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout.strip() == "set() False", said.stderr
