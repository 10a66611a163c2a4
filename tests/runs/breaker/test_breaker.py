"""The breaker as a whole: it trips once, a bug trips it at once, and it can only report."""

import random

import pytest
from rows import graded, void

from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.breaker.watch import CanaryResult
from plimsoll.trials.verdicts import Cause


def test_a_bug_stops_the_run_at_once():
    breaker = Breaker(BreakerLimits())
    breaker.trial(graded(1.0))
    breaker.trial(void(Cause.BUG, "KeyError: 'x'", "a", 7))
    assert breaker.trip is not None
    assert breaker.trip.rule == "bug"
    assert breaker.trip.message == "a.7 is void: bug: Plimsoll itself failed (limit 0)"


def test_the_other_causes_do_not_stop_it_at_once():
    for cause in Cause:
        breaker = Breaker(BreakerLimits())
        breaker.trial(graded(1.0))
        breaker.trial(void(cause))
        assert (breaker.trip is not None) is (cause is Cause.BUG)


def test_the_first_trip_is_kept():
    breaker = Breaker(BreakerLimits())
    for _ in range(16):
        breaker.trial(void())
    first = breaker.trip
    assert first is not None
    assert first.rule == "dead-start"
    breaker.trial(void(Cause.BUG))
    breaker.canary(CanaryResult(void(), 1.0))
    assert breaker.trip is first
    assert breaker.tripped


def test_with_keep_going_a_trip_is_reported_and_does_not_stop():
    breaker = Breaker(BreakerLimits(stops=False))
    breaker.trial(void(Cause.BUG))
    assert breaker.trip is not None
    assert not breaker.tripped


def test_broken_graders_of_all_tasks_stop_a_run_before_its_second_batch():
    rng = random.Random(0)
    reasons = ["the grader could not fetch `x.org` with curl", "no module `parser`"]
    breaker = Breaker(BreakerLimits(group=8))
    trials = 0
    while not breaker.tripped:
        breaker.trial(void(reason=rng.choice(reasons)))
        trials += 1
    assert trials <= breaker.limits.batch


@pytest.mark.parametrize(("tasks", "enough"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (1000, 3)])
def test_a_majority_of_tasks_or_three_is_enough_to_stop(tasks: int, enough: int):
    assert BreakerLimits(tasks=tasks).enough_tasks == enough


def test_a_healthy_run_with_noise_never_trips():
    rng = random.Random(42)
    breaker = Breaker(BreakerLimits(group=8))
    for group in range(2000):
        chance = rng.random()
        for attempt in range(1, 9):
            row = graded(float(rng.random() < chance), f"t{group}", attempt)
            lost = void(rng.choice([Cause.SANDBOX, Cause.POLICY]), "x", f"t{group}", attempt)
            breaker.trial(lost if rng.random() < 0.1 else row)
        if group % 25 == 0:
            breaker.canary(CanaryResult(graded(1.0), 1.0))
        assert breaker.trip is None, breaker.trip


def run_policy(*, step: int, group: int = 8) -> BreakerLimits:
    return BreakerLimits.of_run(step=step, group=group, tasks=50, expects_equal=False, stops=True)


@pytest.mark.parametrize(("step", "trials"), [(8, 192), (64, 192), (65, 384), (512, 1536)])
def test_equal_rewards_trip_only_after_three_steps(step: int, trials: int):
    breaker = Breaker(run_policy(step=step, group=1))
    done = 0
    while breaker.trip is None:
        breaker.trial(graded(0.0, task=f"t{done % 50}"))
        done += 1
    assert (breaker.trip.rule, done) == ("equal-rewards", trials)
