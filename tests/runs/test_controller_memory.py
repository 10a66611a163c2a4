"""The memory of the controller does not grow with the number of trials."""

import gc
from collections import Counter
from pathlib import Path

import pytest
from rollout_runs import MakeConfig, all_batches, check_audit
from scripted_workers import HALF, ONE, ScriptedWorkers

from plimsoll.integrations.trials import Trials
from plimsoll.runs import session
from plimsoll.runs.rollouts import Rollouts
from plimsoll.runs.session import RunSession
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Verdict, Void
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.messages import Order
from plimsoll.workers.worker.policy_service import ServedPolicy


def objects() -> Counter[str]:
    """The objects of Plimsoll's own types that are alive, by type."""
    gc.collect()
    kinds = (type(one) for one in gc.get_objects())
    return Counter(kind.__qualname__ for kind in kinds if kind.__module__.startswith("plimsoll"))


async def check_empty(run: RunSession) -> None:
    """Check that the scheduler and the books hold nothing, once the last trials are entered."""
    scheduler, books = run._scheduler, run._ledger.books
    await until(lambda: not (scheduler.running or scheduler._over or len(scheduler._buffer)))
    assert scheduler.orders == {}
    assert not scheduler.sets
    assert books.groups == books.evals == books.pending == {}


async def test_finished_groups_leave_nothing_in_the_controller(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("coin-a", "coin-b", steps=10)
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        await all_batches(rollouts)
        await check_empty(rollouts)
        assert len(rollouts.restored.buffer) == 0
        assert isinstance(rollouts._workers, Supervisor)
        assert rollouts._workers._jobs == {}
    check_audit(tmp_path / "run")


async def test_trial_sets_leave_nothing_in_the_controller(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def trial(order: Order) -> Verdict:
        if order.name == "unlucky" and order.ticket.endswith(".0"):
            return Void(Cause.SANDBOX, "no space")
        return ONE if order.name == "a" else HALF

    monkeypatch.setattr(session, "make_workers", lambda *_, **__: ScriptedWorkers(trial, 4))
    served = ServedPolicy(())
    config = make_config("a", "b", "unlucky")
    async with Trials(config, served, out=tmp_path / "run", kind="verl") as trials:

        async def calls(number: int, first: int) -> None:
            for call in range(first, first + number):
                rows = await trials.run_all(["a", "unlucky" if call % 8 == 0 else "b"], str(call))
                assert [row.reward for row in rows] == [1.0, 0.5]

        await calls(8, 0)
        before = objects()
        await calls(64, 8)
        # The breaker keeps the rows of its unfinished batch: 8 more than before.
        assert {kind: n for kind, n in (objects() - before).items() if n > 32} == {}
        await check_empty(trials)
    check_audit(tmp_path / "run")
