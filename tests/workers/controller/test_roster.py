"""The roster: the displayed lag of a worker, and the distribution of the next orders.

The lag covers the time since the previous status. Each order is announced to one worker, and shares
change as little as possible.
"""

import pytest

from plimsoll.workers.controller.roster import Job, Roster, WorkerEntry, WorkerState
from plimsoll.workers.messages import Beat, Kind, Order

A, B, C = Kind("a", "a"), Kind("b", "b"), Kind("c", "c")


def beat(*, lag: float, slowest: float) -> Beat:
    return Beat(rss_mb=60.0, lag=lag, slowest=slowest)


def test_a_slow_loop_turn_is_shown_after_later_heartbeats():
    entry = WorkerEntry("worker-1")
    assert entry.status().lag == 0
    entry.record_beat(beat(lag=0.0, slowest=0.35))
    entry.record_beat(beat(lag=0.0, slowest=0.01))
    assert entry.status().lag == 0.35
    assert entry.status().lag == 0, "the slow turn was shown before"


def test_a_blocked_loop_is_shown_while_it_is_blocked():
    entry = WorkerEntry("worker-1")
    entry.record_beat(beat(lag=3.0, slowest=3.0))
    assert [entry.status().lag for _ in range(2)] == [3.0, 3.0]
    entry.record_beat(beat(lag=0.0, slowest=3.2))
    assert [entry.status().lag for _ in range(3)] == [3.2, 0.0, 0.0]


def roster(slots: int, *workers: str) -> Roster:
    """A roster of ready workers."""
    made = Roster(slots)
    for worker in workers or ("one", "two"):
        made.add(WorkerEntry(worker, WorkerState.READY))
    return made


def announced(roster: Roster, kinds: list[Kind]) -> dict[str, str]:
    """The changed shares by worker, kinds as letters."""
    shares = roster.expect(kinds)
    return {worker: "".join(kind.task for kind in share) for worker, share in shares.items()}


def give(roster: Roster, worker: str, kind: Kind) -> None:
    entry = roster.find(worker)
    assert entry is not None
    entry.give(Job(Order(ticket="t", task=kind.task, name=kind.name, attempt=1, folder="")))


def test_the_next_orders_are_distributed_evenly_and_no_worker_expects_more_than_its_slots():
    assert announced(roster(4), [A, A, A, A, B, B]) == {"one": "aab", "two": "aab"}
    assert announced(roster(2), [A, A, A, A, B, B]) == {"one": "aa", "two": "aa"}
    assert announced(Roster(2), [A]) == {}


def test_a_worker_gets_a_new_forecast_only_if_its_share_changed():
    workers = roster(4)
    announced(workers, [A, A, B, B])
    assert announced(workers, [A, A, B, B]) == {}
    assert announced(workers, [A, A, B, B, C]) == {"one": "abc"}
    assert announced(workers, [A, A, B, C]) == {"one": "ac"}


async def test_an_order_that_moves_up_stays_with_its_worker():
    workers = roster(2)
    kinds = [Kind(letter, letter) for letter in "abcdefgh"]
    assert announced(workers, kinds[:4]) == {"one": "ac", "two": "bd"}
    for number in range(1, 5):
        give(workers, "one", kinds[number - 1])
        changed = announced(workers, kinds[number : number + 4])
        # At most one worker gets a new share: the one that lost an order to another worker, or
        # the one with room for the newest order.
        assert len(changed) == 1, changed


async def test_an_order_that_a_worker_expected_is_counted_down_without_a_message():
    workers = roster(4)
    announced(workers, [A, A, A, A])
    give(workers, "two", A)
    assert announced(workers, [A, A, A]) == {}


async def test_an_order_that_a_worker_did_not_expect_is_withdrawn_from_another():
    workers = roster(4)
    assert announced(workers, [A, B]) == {"one": "a", "two": "b"}
    give(workers, "two", A)
    assert announced(workers, [B]) == {"one": ""}


def test_orders_that_never_come_are_withdrawn():
    workers = roster(4)
    announced(workers, [A, A, B])
    assert announced(workers, []) == {"one": "", "two": ""}
    assert announced(workers, []) == {}


@pytest.mark.parametrize("state", [WorkerState.FULL, WorkerState.ENDING])
def test_a_worker_that_takes_no_more_tickets_expects_none_and_others_expect_its_share(
    state: WorkerState,
):
    workers = roster(4)
    announced(workers, [A, B])
    one = workers.find("one")
    assert one is not None
    one.state = state
    assert announced(workers, [A, B]) == {"one": "", "two": "ab"}
    workers.remove(one)
    workers.add(WorkerEntry("three", WorkerState.READY))
    assert announced(workers, [A, B]) == {}


async def test_of_equally_busy_workers_one_that_expects_an_order_gets_it():
    workers = roster(4)
    assert announced(workers, [A, B]) == {"one": "a", "two": "b"}
    for kind, worker in ((B, "two"), (A, "one")):
        assert workers.least_busy(kind) is workers.find(worker)
    give(workers, "two", C)
    assert workers.least_busy(B) is workers.find("one"), "the load takes precedence"
