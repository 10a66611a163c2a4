"""A failed canary stops a run at once; passed canaries or low rewards alone do not."""

import random

from rows import graded, void

from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.breaker.rules import CanaryFailed, RewardCollapse
from plimsoll.runs.breaker.watch import CanaryResult
from plimsoll.trials.verdicts import Cause

GOOD = CanaryResult(graded(1.0, "c"), 1.0)
LOW = CanaryResult(graded(0.5, "c"), 1.0, voided=12)
VOID = CanaryResult(void(Cause.SANDBOX, "no space left", "c"), 1.0, voided=3)


def test_a_canary_below_its_maximum_trips():
    trip = CanaryFailed().canary(LOW)
    assert trip is not None
    assert trip.message == "the canary c.1 is graded 0.5, not 1 (limit 0 failures)"
    assert trip.notes == ("12 trials since the last good canary are void",)


def test_a_void_canary_trips_with_its_reason():
    trip = CanaryFailed().canary(VOID)
    assert trip is not None
    assert "void: sandbox: no space left" in trip.message


def test_good_canaries_never_trip():
    watch = CanaryFailed()
    assert all(watch.canary(GOOD) is None for _ in range(1000))


def test_voided_trials_blame_the_sandbox_only_if_the_canary_does():
    assert (VOID.cause, LOW.cause) == (Cause.SANDBOX, Cause.GRADER)
    assert CanaryResult(void(Cause.TASK), 1.0).cause is Cause.GRADER


def test_tasks_that_fell_to_0_are_named_when_a_canary_fails():
    watch = RewardCollapse()
    for task, rewards in {"a": [1, 0, 0, 0, 0], "b": [0.5, 0, 0, 0], "c": [0, 0, 0, 0]}.items():
        for reward in rewards:
            assert watch.trial(graded(float(reward), task)) is None
    trip = watch.canary(LOW)
    assert trip is not None
    assert "2 solvable task(s) fell to reward 0" in trip.message
    assert trip.notes[0] == "fell to 0: a (4 zeros in a row), b (3 zeros in a row)"
    assert trip.example == graded(0.0, "a")


def test_neither_a_fall_nor_a_failed_canary_alone_trips():
    watch = RewardCollapse()
    for reward in (1.0, 0.0, 0.0, 0.0, 0.0):
        watch.trial(graded(reward, "a"))
    assert watch.canary(GOOD) is None
    watch.trial(graded(1.0, "a"))
    assert watch.canary(LOW) is None


def test_void_trials_do_not_count_as_zeros():
    watch = RewardCollapse()
    watch.trial(graded(1.0, "a"))
    for _ in range(10):
        watch.trial(void(task="a"))
    assert watch.canary(LOW) is None


def test_a_task_with_occasional_successes_has_not_fallen():
    rng = random.Random(2)
    watch = RewardCollapse()
    for _ in range(300):
        watch.trial(graded(1.0 if rng.random() < 0.9 else 0.0, f"t{rng.randrange(5)}"))
    for task in range(5):
        watch.trial(graded(1.0, f"t{task}"))
    assert watch.canary(LOW) is None


def test_fallen_tasks_take_precedence_over_the_failed_canary():
    breaker = Breaker(BreakerLimits())
    for reward in (1.0, 0.0, 0.0, 0.0):
        breaker.trial(graded(reward, "a"))
    breaker.canary(LOW)
    assert breaker.trip is not None
    assert breaker.trip.rule == "fallen-tasks"
