"""Stragglers: the remedies that a run applies, and that it reaches its end."""

import asyncio
from pathlib import Path

import pytest
from rollout_runs import MakeConfig, all_batches, check_audit, prompts

from plimsoll.config.file import Config
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.rules import stragglers
from plimsoll.runs.rollouts import Rollouts
from plimsoll.runs.scheduling.scheduler import Scheduler
from plimsoll.testing.waiting import until


def hanging_run(make_config: MakeConfig, **run: object) -> Config:
    """A run whose first prompt is of a task that never ends, with one group per batch."""
    names = [*(f"coin-{number}" for number in range(9)), "waits-a"]
    seed = next(n for n in range(99) if DataOrder(names, seed=n).epoch(0)[0] == "waits-a")
    usual = {"batch_groups": 1, "group_size": 1, "depth": 1, "slack_seconds": 0.3}
    return make_config(*names, seed=seed, **{**usual, **run})


async def test_a_hung_rollout_is_resumed_then_requeued_then_its_task_is_excluded(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stragglers, "MOST_RESUMES", 1)
    config = hanging_run(make_config, steps=9, max_staleness=1, requeues=1)
    async with asyncio.timeout(55), Rollouts(config, out=tmp_path / "run") as rollouts:
        batches = await all_batches(rollouts)
        requeued = rollouts.status().requeued
    assert len(batches) == 9
    assert requeued == 1
    assert "it took too long" in rollouts.summary.out["waits-a"]
    assert "waits-a" not in {group.task for batch in batches for group in batch.groups}
    check_audit(tmp_path / "run")


async def test_a_straggler_of_the_last_batch_is_replaced(make_config: MakeConfig, tmp_path: Path):
    config = hanging_run(make_config, steps=2, max_staleness=2)
    async with asyncio.timeout(55), Rollouts(config, out=tmp_path / "run") as rollouts:
        batches = await all_batches(rollouts)
    assert prompts(batches) == [1, 2]
    assert rollouts.summary.done
    assert rollouts.summary.quarantined == []
    check_audit(tmp_path / "run")


async def test_a_policy_pause_does_not_use_up_slack(make_config: MakeConfig, tmp_path: Path):
    config = hanging_run(make_config, steps=30, max_staleness=1)
    async with asyncio.timeout(55), Rollouts(config, out=tmp_path / "run") as rollouts:
        training = asyncio.create_task(all_batches(rollouts))
        slack = rollouts._scheduler._stragglers
        await until(lambda: slack._ends, 60)
        with rollouts.paused():
            before = dict(slack._ends)
            await asyncio.sleep(1.0)
            assert slack._ends == before
        await until(lambda: slack._ends != before, 60)
        rollouts.stop()
        await training


async def test_expired_slack_does_not_make_a_stopped_run_spin(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = hanging_run(make_config, steps=30, max_staleness=1, slack_seconds=1.0)
    workers = config.workers.model_copy(update={"grace_seconds": 3.0})
    turns: list[bool] = []
    turn = Scheduler._turn

    async def counted(self: Scheduler) -> None:
        turns.append(bool(self.why))
        await turn(self)

    monkeypatch.setattr(Scheduler, "_turn", counted)
    config = config.model_copy(update={"workers": workers})
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        training = asyncio.create_task(all_batches(rollouts))
        await until(lambda: rollouts._scheduler._stragglers._ends, 60)
        rollouts.stop()
        await training
    assert sum(turns) < 300, "the controller makes a few turns per second"
