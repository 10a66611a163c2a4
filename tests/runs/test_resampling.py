"""Seeds after the death of a worker: the same, unless the policy has already answered."""

import os
import signal
from pathlib import Path

import pytest
from pausing_policy import PausingPolicy, asking_config
from rollout_runs import all_batches, check_audit, rows

from plimsoll.runs.rollouts import Rollouts
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause


@pytest.mark.parametrize("has_answered", [False, True])
async def test_a_rollout_lost_after_an_answer_is_sampled_with_other_seeds(
    tmp_path: Path, has_answered: bool
):
    command = "sleep 2; touch /app/done" if has_answered else "touch /app/done"
    async with PausingPolicy(command) as policy:
        config = asking_config(tmp_path, policy, run={"steps": 1}, policy={"seed": 1})
        async with Rollouts(config, out=tmp_path / "run") as rollouts:
            if has_answered:
                # It has its answer, and runs the command in it.
                await until(lambda: policy.seeds, 60)
                await until(lambda: list(tmp_path.glob("run/**/agent/stdout.txt")), 60)
            else:
                policy.answers.clear()
                await until(lambda: policy.held, 60)
            (worker,) = rollouts.status().workers
            os.kill(int(worker.where.split()[-1]), signal.SIGKILL)
            policy.answers.set()
            await all_batches(rollouts)
    assert [row.cause for row in rows(tmp_path / "run")] == [Cause.LOST, None]
    assert len(set(policy.seeds)) == (2 if has_answered else 1)
    check_audit(tmp_path / "run")
