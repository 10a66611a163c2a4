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


def test_one_canary_for_so_many_trials_in_turns():
    assert start(Canaries.of(10, ["a", "b"]), 51) == ["a", "b", "a", "b", "a"]


def test_none_is_due_before_the_first_interval_is_over():
    canaries = Canaries.of(10, ["a"])
    start(canaries, 9)
    assert canaries.take() is None
    canaries.trial_started()
    assert canaries.take() == "a"
    assert canaries.take() is None


def test_a_canary_waits_for_a_task_that_was_solved():
    canaries = Canaries(10)
    assert start(canaries, 35) == []
    canaries.prove("late")
    assert canaries.take() == "late"


def test_no_more_tasks_are_kept_than_are_needed():
    canaries = Canaries(10)
    for number in range(1000):
        canaries.prove(f"t{number}")
        canaries.prove("t0")
    assert len(canaries.proven) == ENOUGH_TASKS
    assert not canaries.wants_tasks


def test_a_failed_canary_takes_what_no_good_one_vouches_for():
    canaries = Canaries.of(4, ["a"])
    for number in range(4):
        canaries.trial_finished(("t", number))
    mark = canaries.canary_started()
    canaries.trial_finished(("t", 4))  # while the canary runs, so not covered by it
    canaries.canary_passed(mark)
    canaries.trial_finished(("t", 5))
    assert canaries.canary_failed() == (("t", 4), ("t", 5))
    assert (canaries.good, canaries.failed) == (1, 1)


def test_before_the_first_good_canary_all_trials_are_taken():
    canaries = Canaries.of(2, ["a"])
    for number in range(3):
        canaries.trial_finished(("t", number))
    assert canaries.canary_failed() == (("t", 0), ("t", 1), ("t", 2))
    assert canaries.canary_failed() == ()


def test_only_the_node_of_the_canary_is_affected():
    canaries = Canaries.of(2, ["a"])
    canaries.trial_finished(("t", 1), "one")
    canaries.trial_finished(("t", 2), "two")
    assert canaries.canary_failed("two") == (("t", 2),)
    canaries.canary_passed(canaries.canary_started("one"), "one")
    assert canaries.canary_failed("one") == ()


def test_what_is_remembered_is_bounded_where_no_task_can_be_a_canary():
    canaries = Canaries(5)
    for number in range(10_000):
        canaries.trial_finished(("t", number))
    taken = canaries.canary_failed()
    assert len(taken) == 80
    assert taken[-1] == ("t", 9999)


def test_where_tasks_are_validated_no_others_are_asked_for():
    canaries = Canaries.of(10, ["a"])
    canaries.prove("b")
    assert not canaries.wants_tasks
    assert list(canaries.proven) == ["a"]


def test_a_task_that_failed_its_validation_is_no_canary():
    canaries = Canaries.of(10, [], ["flaky"])
    canaries.prove("flaky")
    canaries.prove("b")
    assert list(canaries.proven) == ["b"]
