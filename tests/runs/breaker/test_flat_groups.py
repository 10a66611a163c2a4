"""Groups without variance: nearly all of them stop a run, many of them do not."""

import random
from collections.abc import Iterator

from rows import graded, void

from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.runs.breaker.rules import FlatGroups
from plimsoll.runs.breaker.watch import Trip
from plimsoll.runs.files.results import Row


def groups(flat: Iterator[bool], count: int, size: int = 8) -> Iterator[Row]:
    """Consecutive groups; those that are not flat have one solved member."""
    for number, is_flat in zip(range(count), flat, strict=False):
        for attempt in range(1, size + 1):
            reward = float(number % 2) if is_flat else float(attempt == 1)
            yield graded(reward, task=f"t{number}", attempt=attempt)


def first_trip(rows: Iterator[Row], size: int = 8) -> Trip | None:
    breaker = Breaker(BreakerLimits(group=size))
    for row in rows:
        breaker.trial(row)
        if breaker.trip is not None:
            return breaker.trip
    return None


def forever(share: float, seed: int) -> Iterator[bool]:
    rng = random.Random(seed)
    while True:
        yield rng.random() < share


def test_groups_that_are_all_flat_trip_after_three_batches():
    trip = first_trip(groups(forever(1.0, 0), 100))
    assert trip is not None
    assert trip.rule == "flat-groups"
    assert trip.message.startswith("24 of 24 groups in the last 3 batches have no variance")
    assert "limit 95%" in trip.message


def test_mostly_flat_groups_of_hard_tasks_do_not_trip():
    assert first_trip(groups(forever(0.6, 5), 2000)) is None


def lost(count: int) -> Iterator[Row]:
    """Groups without a solved member, of tasks that were solved before."""
    for number in range(count):
        for attempt in range(1, 9):
            yield graded(0.0, task=f"t{number}", attempt=attempt)


def test_the_share_is_over_the_last_batches_only():
    watch = FlatGroups(group=8, share=0.95, batches=3)
    trips: list[Trip | None] = []
    for number, row in enumerate([*groups(forever(0.2, 1), 400), *lost(40)], 1):
        watch.trial(row)
        if number % 64 == 0:
            trips.append(watch.batch([]))
    assert not any(trips[:50])
    assert any(trips[50:])


def test_groups_at_the_best_reward_do_not_count_once_rewards_have_varied():
    varied = list(groups(forever(0.0, 0), 30))
    learned = [graded(1.0, task=f"t{n}", attempt=a) for n in range(200) for a in range(1, 9)]
    assert first_trip(iter([*varied, *learned])) is None
    # If no group ever varied, the graders may return 1 for everything.
    assert first_trip(iter(learned)) is not None


def test_half_learned_and_half_unsolved_tasks_do_not_trip():
    rows = [*groups(forever(0.0, 0), 30), *groups(forever(1.0, 0), 400)]
    assert first_trip(iter(rows)) is None


def test_too_few_groups_do_not_trip_over_any_number_of_batches():
    # One group per batch: three batches are three groups.
    assert first_trip(groups(forever(1.0, 0), 15, size=64), size=64) is None
    assert first_trip(groups(forever(1.0, 0), 16, size=64), size=64) is not None


def test_a_group_with_fewer_than_two_grades_does_not_count():
    watch = FlatGroups(group=4, share=0.95, batches=3)
    for number in range(400):
        rows = [graded(0.0, task=f"t{number}"), *[void(task=f"t{number}")] * 3]
        for row in rows:
            watch.trial(row)
        assert watch.batch(rows) is None


def test_attempts_of_many_tasks_in_turn_are_grouped_by_task():
    watch = FlatGroups(group=4, share=0.95, batches=3)
    for attempt in range(1, 5):
        for task in range(60):
            watch.trial(graded(float(attempt == 1), task=f"t{task}", attempt=attempt))
            assert watch.batch([]) is None


def test_finished_groups_leave_no_state():
    watch = FlatGroups(group=2, share=0.95, batches=3)
    for number in range(10_000):
        for attempt in (1, 2):
            watch.trial(graded(float(attempt == 1), task=f"t{number}"))
        watch.batch([])
    held = vars(watch)
    assert held["_open"] == {}
    assert len(held["_window"]) <= 16
