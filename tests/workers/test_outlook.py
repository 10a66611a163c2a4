"""Distribution of announced orders: each order once, with as few changes as possible."""

from plimsoll.workers.messages import Kind
from plimsoll.workers.outlook import Outlook

A, B, C = Kind("a"), Kind("b"), Kind("c")
TWO = ("one", "two")


def told(outlook: Outlook, kinds: list[Kind], workers: tuple[str, ...] = TWO) -> dict[str, str]:
    """The changed shares by worker, kinds as letters."""
    return {
        worker: "".join(one.kind.task * one.count for one in coming)
        for worker, coming in outlook.deal(kinds, workers).items()
    }


def test_what_comes_is_dealt_out_evenly_and_nobody_is_told_of_more_than_it_can_run():
    assert told(Outlook(4), [A, A, A, A, B, B]) == {"one": "aab", "two": "aab"}
    assert told(Outlook(2), [A, A, A, A, B, B]) == {"one": "aa", "two": "aa"}
    assert told(Outlook(2), [A], ()) == {}


def test_who_was_told_is_told_again_only_of_what_has_changed():
    outlook = Outlook(4)
    told(outlook, [A, A, B, B])
    assert told(outlook, [A, A, B, B]) == {}
    assert told(outlook, [A, A, B, B, C]) == {"one": "abc"}
    assert told(outlook, [A, A, B, C]) == {"one": "ac"}


def test_an_order_that_comes_one_place_sooner_stays_where_it_was_dealt():
    outlook = Outlook(2)
    kinds = [Kind(letter) for letter in "abcdefgh"]
    assert told(outlook, kinds[:4]) == {"one": "ac", "two": "bd"}
    for number in range(1, 5):
        outlook.given("one", kinds[number - 1])
        changed = told(outlook, kinds[number : number + 4])
        # At most one worker gets a new share: the one that lost an order to another worker, or
        # the one with room for the newest order.
        assert len(changed) == 1, changed


def test_an_order_that_a_worker_was_given_is_counted_down_without_a_word():
    outlook = Outlook(4)
    told(outlook, [A, A, A, A])
    outlook.given("two", A)
    assert told(outlook, [A, A, A]) == {}
    assert outlook.expecting(A) == {"one", "two"}
    outlook.given("two", A)
    assert outlook.expecting(A) == {"one"}


def test_an_order_that_a_worker_was_given_unawares_is_taken_from_another():
    outlook = Outlook(4)
    assert told(outlook, [A, B]) == {"one": "a", "two": "b"}
    outlook.given("two", A)
    assert told(outlook, [B]) == {"one": ""}


def test_what_never_comes_is_taken_back():
    outlook = Outlook(4)
    told(outlook, [A, A, B])
    assert told(outlook, []) == {"one": "", "two": ""}
    assert told(outlook, []) == {}


def test_one_that_takes_no_more_is_told_so_and_others_expect_its_share():
    outlook = Outlook(4)
    told(outlook, [A, B])
    assert told(outlook, [A, B], ("two",)) == {"one": "", "two": "ab"}
    assert told(outlook, [A, B], ("two", "three")) == {}
