"""Tasks that cannot be graded: a few do not stop a run, a majority does, and early."""

import itertools
from pathlib import Path

import pytest
from rollout_runs import MakeConfig, all_batches, check_audit, rows

from plimsoll.ledger.data_order import DataOrder
from plimsoll.runs.rollouts import Rollouts

LETTERS = "abcdefgh"


def begins_with(tasks: set[str], names: list[str], seed: int) -> bool:
    return set(DataOrder(names, seed=seed).epoch(0)[: len(tasks)]) == tasks


@pytest.mark.parametrize("number", [1, 2])
async def test_a_few_broken_tasks_are_excluded_and_the_run_continues(
    make_config: MakeConfig, tmp_path: Path, number: int
):
    broken = {f"void-{letter}" for letter in LETTERS[:number]}
    names = sorted({*broken, *(f"coin-{letter}" for letter in LETTERS[number:])})
    # They come first, before the others have any results.
    seed = next(seed for seed in itertools.count() if begins_with(broken, names, seed))
    config = make_config(*names, steps=20, group_size=8, seed=seed)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        await all_batches(rollouts)
    summary = rollouts.summary
    assert (summary.done, summary.breaker) == (True, None)
    assert set(summary.quarantined) == broken
    assert {row.task for row in rows(tmp_path / "run") if row.cause} == broken
    check_audit(tmp_path / "run")


async def test_tasks_excluded_because_of_a_server_failure_are_retried_at_a_resume(
    make_config: MakeConfig, tmp_path: Path
):
    config, run = make_config("down-a", "down-b", "void-c", epochs=1, requeues=0), tmp_path / "run"
    async with Rollouts(config, out=run, trains=False, keep_going=True) as rollouts:
        assert await all_batches(rollouts) == []
    assert not rollouts.summary.done
    assert rollouts.summary.ended.endswith("all are excluded; resuming tries 2 of them again")
    assert "resuming tries it again" in rollouts.summary.out["down-a"]
    (run / "go").touch()
    async with Rollouts(config, out=run, trains=False) as rollouts:
        (batch,) = await all_batches(rollouts)
    assert {group.task for group in batch.groups} == {"down-a", "down-b"}
    assert list(rollouts.summary.out) == ["void-c"]
    assert rollouts.summary.ended == "all epochs are done"
    check_audit(run)


async def test_the_third_broken_task_stops_a_run_without_a_working_one(
    make_config: MakeConfig, tmp_path: Path
):
    names = [f"void-{letter}" for letter in LETTERS]
    config = make_config(*names, steps=20, group_size=8)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        assert await all_batches(rollouts) == []
    summary = rollouts.summary
    assert summary.breaker is not None
    assert summary.breaker.rule == "dead-start"
    # Two groups with eight members and two attempts each, and the running part of the third.
    assert 16 <= len(rows(tmp_path / "run")) <= 2 * 16 + 8
    assert len({row.task for row in rows(tmp_path / "run")}) == 3
    assert not summary.quarantined
