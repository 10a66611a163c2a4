"""A batch that is mostly void stops the run; a few void trials among others do not."""

import random

from rows import graded, void

from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.breaker.rules import VoidShare
from plimsoll.trials.verdicts import Cause

CURL = "the grader could not fetch `x.org` with curl, then wrote 0"


def test_a_share_above_the_limit_trips_with_numbers_and_reasons():
    rows = [graded(1.0)] * 31 + [void(reason=CURL)] * 30 + [void(Cause.TASK, "CRLF")] * 3
    trip = VoidShare(0.5).batch(rows)
    assert trip is not None
    assert trip.message == "33 of the last 64 trials are void (limit 50%)"
    assert [(one.cause, one.reason, one.count) for one in trip.voids] == [
        ("grader", CURL, 30),
        ("task", "CRLF", 3),
    ]
    assert trip.example == void(reason=CURL)


def test_a_share_at_the_limit_does_not_trip():
    assert VoidShare(0.5).batch([graded(0.0)] * 32 + [void()] * 32) is None


def test_a_partial_batch_does_not_trip():
    breaker = Breaker(BreakerLimits())
    for number in range(63):
        breaker.trial(void(reason=f"reason {number}"))
    assert breaker.trip is None
    breaker.trial(void(reason="the last"))
    assert breaker.trip is not None
    assert breaker.trip.rule == "void-share"


def test_one_broken_task_may_fill_batches_without_a_trip():
    watch = VoidShare(0.5, enough_tasks=3)
    for name in "abc":
        assert watch.batch([graded(1.0, name)] * 64) is None
    assert watch.batch([void(task="broken")] * 64) is None
    assert watch.batch([void(task="broken")] * 40 + [graded(1.0, "d")] * 24) is None
    alone = VoidShare(0.5, enough_tasks=3)
    assert [alone.batch([void(task="broken")] * 64) for _ in range(9)] == [None] * 9


def test_broken_tasks_trip_by_their_share_of_tasks_not_of_trials():
    few = [void(task=name) for name in "xyz" for _ in range(16)]
    sound = [graded(1.0, name) for name in "abcd" for _ in range(4)]
    assert VoidShare(0.5, enough_tasks=3).batch(few + sound) is None
    assert VoidShare(0.5, enough_tasks=3).batch(few + sound[:8] + few[:8]) is not None


def test_groups_as_large_as_a_batch_trip_with_the_third_broken_task():
    watch = VoidShare(0.5, enough_tasks=3)
    trips = [watch.batch([void(task=name)] * 64) is not None for name in "abc"]
    assert trips == [False, False, True]


def test_voids_without_a_task_to_blame_count_for_any_task():
    rows = [void(Cause.POLICY, task="a")] * 33 + [graded(1.0, name) for name in "bcd"] * 10
    assert VoidShare(0.5, enough_tasks=3).batch([*rows, graded(0.0)]) is not None


def test_graders_that_break_mid_run_trip_within_three_batches():
    breaker = Breaker(BreakerLimits(tasks=1000))
    for number in range(1000):
        breaker.trial(graded(float(number % 2), f"sound-{number // 8}"))
    after = 0
    while breaker.trip is None:
        # Eight members, two attempts each.
        breaker.trial(void(reason=f"no host {after}", task=f"broken-{after // 16}"))
        after += 1
    assert breaker.trip.rule == "void-share"
    assert after <= 3 * 64


def test_occasional_void_trials_do_not_trip():
    rng = random.Random(7)
    breaker = Breaker(BreakerLimits(group=8))
    for number in range(20_000):
        row = void(Cause.SANDBOX) if rng.random() < 0.25 else graded(float(rng.random() < 0.3))
        breaker.trial(row)
        assert breaker.trip is None, number


def test_a_run_that_breaks_midway_trips_within_two_batches():
    rng = random.Random(11)
    breaker = Breaker(BreakerLimits())
    for _ in range(1000):
        breaker.trial(graded(float(rng.random() < 0.5)))
    after = 0
    while breaker.trip is None:
        breaker.trial(void(reason=CURL))
        after += 1
    assert breaker.trip.rule == "void-share"
    assert after <= 2 * 64
