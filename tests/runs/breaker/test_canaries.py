"""Canaries: their schedule, their tasks, and the trials that a failed one invalidates."""

from plimsoll.runs.breaker.canaries import ENOUGH_TASKS, Canaries


def start(canaries: Canaries, trials: int) -> list[str]:
    """Start a number of trials. Returns the canaries that were due in between."""
    taken: list[str] = []
    for _ in range(trials):
        if (task := canaries.take()) is not None:
            taken.append(task)
        canaries.trial_started()
    return taken


def test_one_canary_is_due_per_interval_and_tasks_take_turns():
    assert start(Canaries.of(10, ["a", "b"]), 51) == ["a", "b", "a", "b", "a"]


def test_no_canary_is_due_in_the_first_interval():
    canaries = Canaries.of(10, ["a"])
    start(canaries, 9)
    assert canaries.take() is None
    canaries.trial_started()
    assert canaries.take() == "a"
    assert canaries.take() is None


def test_no_canary_is_due_before_a_task_is_solved():
    canaries = Canaries(10)
    assert start(canaries, 35) == []
    canaries.prove("late")
    assert canaries.take() == "late"


def test_the_number_of_canary_tasks_is_bounded():
    canaries = Canaries(10)
    for number in range(1000):
        canaries.prove(f"t{number}")
        canaries.prove("t0")
    assert len(canaries.proven) == ENOUGH_TASKS
    assert not canaries.wants_tasks


def test_a_failed_canary_voids_unconfirmed_trials():
    canaries = Canaries.of(4, ["a"])
    for number in range(4):
        canaries.trial_finished(f"t-{number}")
    mark = canaries.canary_started()
    canaries.trial_finished("t-4")  # while the canary runs, so not covered by it
    canaries.canary_passed(mark)
    canaries.trial_finished("t-5")
    assert canaries.canary_failed() == ("t-4", "t-5")
    assert (canaries.good, canaries.failed) == (1, 1)


def test_a_failed_first_canary_voids_all_trials():
    canaries = Canaries.of(2, ["a"])
    for number in range(3):
        canaries.trial_finished(f"t-{number}")
    assert canaries.canary_failed() == ("t-0", "t-1", "t-2")
    assert canaries.canary_failed() == ()


def test_unconfirmed_trials_are_bounded_without_canary_tasks():
    canaries = Canaries(5)
    for number in range(10_000):
        canaries.trial_finished(f"t-{number}")
    taken = canaries.canary_failed()
    assert len(taken) == 80
    assert taken[-1] == "t-9999"


def test_validated_tasks_make_other_canary_tasks_unnecessary():
    canaries = Canaries.of(10, ["a"])
    canaries.prove("b")
    assert not canaries.wants_tasks
    assert list(canaries.proven) == ["a"]


def test_a_task_that_failed_validation_is_never_a_canary():
    canaries = Canaries.of(10, [], ["flaky"])
    canaries.prove("flaky")
    canaries.prove("b")
    assert list(canaries.proven) == ["b"]
