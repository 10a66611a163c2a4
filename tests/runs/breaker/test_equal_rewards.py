"""Rewards that never differ stop a run; rewards that differ occasionally do not."""

import random

import pytest
from rows import graded, void

from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.breaker.rules import EqualRewards


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.5])
def test_the_third_batch_of_one_reward_trips(reward: float):
    watch = EqualRewards(3)
    batch = [graded(reward)] * 60 + [void()] * 4
    assert watch.batch(batch) is None
    assert watch.batch(batch) is None
    trip = watch.batch(batch)
    assert trip is not None
    assert f"all 180 rewards of the last 3 batches are {reward:g} (limit 2 batches)" in trip.message


def test_a_different_reward_resets_the_count():
    watch = EqualRewards(3)
    for _ in range(10):
        assert watch.batch([graded(0.0)] * 64) is None
        assert watch.batch([graded(0.0)] * 64) is None
        assert watch.batch([graded(0.0)] * 63 + [graded(1.0)]) is None


def test_a_policy_at_the_best_reward_does_not_trip():
    watch = EqualRewards(3)
    assert watch.batch([graded(0.0)] * 40 + [graded(1.0)] * 24) is None
    for _ in range(20):
        assert watch.batch([graded(1.0)] * 64) is None


@pytest.mark.parametrize("reward", [0.0, 0.5])
def test_equal_rewards_below_the_best_trip(reward: float):
    watch = EqualRewards(3)
    assert watch.batch([graded(0.0)] * 40 + [graded(1.0)] * 24) is None
    assert [watch.batch([graded(reward)] * 64) is None for _ in range(3)] == [True, True, False]


def test_batches_of_different_rewards_are_not_equal():
    watch = EqualRewards(3)
    for number in range(12):
        assert watch.batch([graded(float(number % 3 == 0))] * 64) is None


def test_a_batch_without_a_grade_neither_counts_nor_resets():
    watch = EqualRewards(3)
    for batch in ([graded(0.0)] * 64, [void()] * 64, [graded(0.0)] * 64):
        assert watch.batch(batch) is None
    assert watch.batch([graded(0.0)] * 64) is not None


def test_a_policy_with_rare_successes_does_not_trip():
    rng = random.Random(3)
    breaker = Breaker(BreakerLimits())
    for number in range(20_000):
        breaker.trial(graded(float(rng.random() < 0.08)))
        assert breaker.trip is None, number


def test_the_watch_is_off_if_equal_rewards_are_expected():
    breaker = Breaker(BreakerLimits(expects_equal=True, group=4))
    for number in range(2000):
        breaker.trial(graded(1.0, task=f"t{number % 50}"))
    assert breaker.trip is None


def test_a_grader_that_always_writes_0_trips_in_the_third_batch():
    breaker = Breaker(BreakerLimits())
    trials = 0
    while breaker.trip is None:
        breaker.trial(graded(0.0))
        trials += 1
    assert (breaker.trip.rule, trials) == ("equal-rewards", 192)
