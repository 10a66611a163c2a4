"""Worker status: the displayed lag covers the time since the previous status."""

from plimsoll.workers.controller.roster import Member
from plimsoll.workers.messages import Beat


def beat(number: int, *, lag: float, slowest: float) -> Beat:
    return Beat(number=number, rss_mb=60.0, lag=lag, slowest=slowest, running=0)


def test_a_slow_turn_is_shown_though_the_loop_has_come_round_since():
    member = Member("worker-1")
    assert member.status().lag == 0
    member.feel(beat(1, lag=0.0, slowest=0.35))
    member.feel(beat(2, lag=0.0, slowest=0.01))
    assert member.status().lag == 0.35
    assert member.status().lag == 0, "it was told already"


def test_a_loop_that_does_not_come_round_is_shown_for_as_long_as_that_lasts():
    member = Member("worker-1")
    member.feel(beat(1, lag=3.0, slowest=3.0))
    assert [member.status().lag for _ in range(2)] == [3.0, 3.0]
    member.feel(beat(2, lag=0.0, slowest=3.2))
    assert [member.status().lag for _ in range(3)] == [3.2, 0.0, 0.0]
