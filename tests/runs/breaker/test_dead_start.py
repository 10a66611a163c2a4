"""A run whose first trials all fail for one reason stops; others continue."""

import pytest
from rows import graded, void

from plimsoll.runs.breaker.rules import DeadStart
from plimsoll.runs.breaker.watch import Trip
from plimsoll.runs.files.results import Row
from plimsoll.trials.verdicts import Cause


def watched(*rows: Row, enough_tasks: int = 1) -> Trip | None:
    watch = DeadStart(16, enough_tasks)
    trips = [trip for row in rows if (trip := watch.trial(row)) is not None]
    assert len(trips) <= 1
    return trips[0] if trips else None


def test_infrastructure_failures_stop_the_run_for_any_reasons():
    lost = [void(Cause.SANDBOX, f"{n}/Dockerfile:2 failed", task=f"t{n}") for n in range(15)]
    trip = watched(*lost, void(Cause.POLICY))
    assert trip is not None
    assert "first 16 trials are all void (limit 15)" in trip.message
    assert "sandbox 15, policy 1" in trip.message
    assert watched(*lost) is None


@pytest.mark.parametrize("cause", [Cause.GRADER, Cause.TASK, Cause.SANDBOX])
def test_one_reason_shared_by_all_stops_the_run(cause: Cause):
    trip = watched(*[void(cause, "no curl", task=f"t{n}") for n in range(20)])
    assert trip is not None
    assert "all for the same reason" in trip.message
    assert [(one.reason, one.count) for one in trip.voids] == [("no curl", 16)]
    assert trip.example is not None
    assert trip.example.task == "t0"


def test_tasks_broken_in_different_ways_do_not_stop_the_run():
    assert watched(*[void(reason=f"broken {n}") for n in range(40)]) is None
    assert watched(*[void(reason="no curl")] * 15, void(reason="no pip")) is None
    assert watched(*[void(Cause.SANDBOX)] * 15, void(Cause.TASK)) is None


def test_retries_of_a_single_broken_task_do_not_stop_the_run():
    again = [void(task="broken")] * 100
    assert watched(*again, enough_tasks=3) is None
    assert watched(*again, void(task="other"), enough_tasks=3) is None
    assert (
        watched(*again, graded(1.0), *[void(task=f"t{n}") for n in range(9)], enough_tasks=3)
        is None
    )
    assert (
        watched(*again, *[void(reason="another", task=f"t{n}") for n in range(9)], enough_tasks=3)
        is None
    )


def test_a_reason_stops_the_run_once_enough_tasks_share_it():
    rows = [void(task="a")] * 20 + [void(task="b"), void(task="c")]
    assert watched(*rows[:-1], enough_tasks=3) is None
    trip = watched(*rows, enough_tasks=3)
    assert trip is not None
    assert trip.message.startswith("the first 22 trials are all void (limit 15), all for the same")
    assert [one.count for one in trip.voids] == [22]


def test_a_single_task_stops_the_run_if_no_task_is_to_blame():
    assert watched(*[void(Cause.SANDBOX, task="a")] * 16, enough_tasks=3) is not None


@pytest.mark.parametrize("at", [0, 5, 15])
def test_one_graded_trial_disables_the_watch(at: int):
    rows = [void(Cause.SANDBOX)] * 60
    rows[at] = graded(0.0)
    assert watched(*rows) is None
