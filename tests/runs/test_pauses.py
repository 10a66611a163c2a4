"""A run whose policy is paused for new weights while trials use it."""

import asyncio
from pathlib import Path

import pytest
from pausing_policy import PausingPolicy, asking_config
from rollout_runs import check_audit, rows

from plimsoll.core.endings import Ending
from plimsoll.core.versions import Version
from plimsoll.runs.rollouts import Rollouts
from plimsoll.testing.waiting import until

SECONDS = 4.0
"""The agent's time limit in the task."""


@pytest.mark.slow
async def test_a_publish_longer_than_the_agents_time_costs_no_reward(tmp_path: Path):
    async with PausingPolicy("sleep 1; touch /app/done") as policy:
        config = asking_config(
            tmp_path, policy, seconds=SECONDS, run={"depth": 1, "max_staleness": 1}
        )

        async def publish(version: Version) -> None:
            policy.answers.clear()
            with rollouts.paused():
                if version.number == 1:
                    await until(lambda: policy.held, 60)
                    await asyncio.sleep(1.5 * SECONDS)
                policy.answers.set()

        async with Rollouts(config, out=tmp_path / "run") as rollouts:
            async for batch in rollouts.batches():
                await rollouts.commit(batch, publish=publish)
    _, second = rows(tmp_path / "run")
    assert (second.reward, second.ending) == (1.0, Ending.SUBMITTED)
    assert SECONDS < (second.paused_seconds or 0.0) < second.seconds
    check_audit(tmp_path / "run")
