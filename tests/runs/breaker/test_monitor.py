"""The monitor of a run: cancelled trials do not count."""

from pathlib import Path

import pytest
from rollout_runs import MakeConfig, all_batches, check_audit
from rows import graded, void

from plimsoll.runs.breaker.breaker import Breaker, BreakerMonitor
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.rollouts import Rollouts
from plimsoll.trials.verdicts import Cause


def watching() -> BreakerMonitor:
    return BreakerMonitor(Breaker(BreakerLimits(tasks=50)), None, {}, 1)


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.CANCELLED])
def test_cancelled_and_lost_trials_never_trip_the_breaker(cause: Cause):
    watch = watching()
    for number in range(200):
        watch.trial_finished(void(cause, f"worker {number % 3} is gone", task=f"t-{number}"))
    assert watch.breaker.trip is None


@pytest.mark.parametrize("cause", [Cause.SANDBOX, Cause.POLICY, Cause.GRADER])
def test_cancelled_and_lost_trials_do_not_hide_other_void_trials(cause: Cause):
    watch = watching()
    for number in range(16):
        watch.trial_finished(void(Cause.LOST, "its worker is gone"))
        assert watch.breaker.trip is None
        watch.trial_finished(void(cause, task=f"t-{number}"))
    assert watch.breaker.trip is not None
    assert watch.breaker.trip.rule == "dead-start"


def test_a_batch_counts_only_trials_that_ended_by_themselves():
    watch = watching()
    watch.trial_finished(graded(1.0))
    for number in range(63):
        watch.trial_finished(void(Cause.LOST, "its worker is gone"))
        watch.trial_finished(void(Cause.SANDBOX, task=f"t-{number}"))
    assert watch.breaker.trip is not None
    assert (watch.breaker.trip.rule, len(watch.breaker.trip.voids)) == ("void-share", 1)


async def test_the_loss_of_all_running_trials_does_not_trip_the_breaker(
    make_config: MakeConfig, tmp_path: Path
):
    config = make_config("lost-a", "lost-b", steps=1, group_size=16)
    workers = config.workers.model_copy(update={"concurrency": 32})
    config = config.model_copy(update={"workers": workers})
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        assert len(await all_batches(rollouts)) == 1
    summary = rollouts.summary
    assert summary.void["lost"] >= 16, "enough for a dead start, if lost trials counted"
    assert (summary.done, summary.breaker) == (True, None)
    check_audit(tmp_path / "run")
