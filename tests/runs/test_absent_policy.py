"""A worker that is killed while the policy is down or paused: its replacement starts anyway."""

import contextlib
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from pausing_policy import PausingPolicy, asking_config
from rollout_runs import all_batches, check_audit, rows

from plimsoll.core.errors import PolicyError
from plimsoll.runs.rollouts import Rollouts
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause
from plimsoll.workers.controller.roster import WorkerState


@contextlib.contextmanager
def hanging(policy: PausingPolicy) -> Generator[None]:
    policy.answers.clear()
    try:
        yield
    finally:
        policy.answers.set()


def ready(rollouts: Rollouts, *, but: str = "") -> str:
    """The worker that takes tickets, if there is one."""
    for worker in rollouts.status().workers:
        if worker.phase is WorkerState.READY and worker.worker != but:
            return worker.worker
    return ""


async def replace_worker(rollouts: Rollouts) -> None:
    """Kill the run's worker, and wait for a replacement that takes tickets."""
    (before,) = rollouts.status().workers
    os.kill(int(before.where.split()[-1]), signal.SIGKILL)
    await until(lambda: ready(rollouts, but=before.worker), 60)


@pytest.mark.parametrize(
    "how", ["hangs", *(pytest.param(how, marks=pytest.mark.slow) for how in ("refuses", "paused"))]
)
async def test_a_worker_starts_without_a_policy_and_the_run_continues(tmp_path: Path, how: str):
    async with PausingPolicy() as policy:
        config = asking_config(tmp_path, policy)
        async with Rollouts(config, out=tmp_path / "run") as rollouts:
            first = await anext(rollouts.batches())
            match how:
                case "refuses":
                    await policy.stop()
                    await replace_worker(rollouts)
                    await policy.start()
                case "hangs":
                    with hanging(policy):
                        await replace_worker(rollouts)
                case _:
                    with rollouts.paused(), hanging(policy):
                        await replace_worker(rollouts)
            await rollouts.commit(first)
            await all_batches(rollouts)
        assert rollouts.summary.done
    assert {row.cause for row in rows(tmp_path / "run")} <= {None, Cause.LOST}
    check_audit(tmp_path / "run")


async def test_a_run_does_not_start_without_a_policy_server(tmp_path: Path):
    async with PausingPolicy() as policy:
        config = asking_config(tmp_path, policy)
    with pytest.raises(PolicyError, match=r"cannot be reached.*nothing was started"):
        async with Rollouts(config, out=tmp_path / "run"):
            pass
    assert not (tmp_path / "run").exists()
