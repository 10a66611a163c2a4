"""What a run gives up itself: it admits no more than it can use, and its prompts come again."""

import pytest
from runs_by_hand import ORDER, Hand

from plimsoll.core.errors import LedgerError
from plimsoll.ledger.group import MemberState
from plimsoll.trials.verdicts import CAUSES, Cause, Void


def test_no_more_groups_are_admitted_than_are_wanted():
    run = Hand(batch_groups=2, depth=1)
    assert len(run.accounts.admit(ORDER, 1)) == 1
    assert run.accounts.admit(ORDER, 0) == []
    assert len(run.accounts.admit(ORDER, 99)) == 3
    assert run.is_sound()


def test_a_rollout_that_the_run_cancelled_is_tried_again_whatever_the_table_says():
    for policy in ("complete", "min_graded", "void"):
        run = Hand(group_policy=policy, requeues=0)
        run.admit()
        run.start_all()
        stopped = Void(Cause.CANCELLED, "the run was stopped")
        assert run.accounts.void("0-0/0.0", stopped, again=True)
        (member,) = run.books.groups["0-0"].members
        assert (member.state, member.attempt) == (MemberState.WAITING, 1)
        assert not run.books.quarantined
        assert run.is_sound()


def test_how_often_a_run_was_stopped_is_not_held_against_its_rollouts():
    run = Hand(requeues=3)
    run.admit()
    stops = 7
    for attempt in range(stops):
        assert run.accounts.void(f"0-0/0.{attempt}", Void(Cause.CANCELLED, "stopped"), again=True)
    tries = CAUSES[Cause.POLICY].retries + run.accounts.settings.requeues
    for attempt in range(stops, stops + tries):
        run.void(f"0-0/0.{attempt}", Cause.POLICY)
        assert "0-0" in run.books.groups, "it has as many tries as without the stops"
    run.void(f"0-0/0.{stops + tries}", Cause.POLICY)
    assert "0-0" not in run.books.groups
    assert run.is_sound()


def test_groups_that_are_distrusted_are_given_up_and_their_prompts_come_again():
    run = Hand(batch_groups=1, depth=2, group_size=2)
    run.admit()
    run.start_all()
    for ticket in ("0-0/0.0", "0-0/1.0", "1-0/0.0", "1-0/1.0", "2-0/0.0"):
        run.finish(ticket)
    run.accounts.consume(run.choose())
    doubt = Void(Cause.GRADER, "a canary failed")
    given_up = run.accounts.distrust(["0-0/0.0", "1-0/1.0", "2-0/0.0", "9-0/0.0", "x"], doubt)
    # What is being trained on stays.
    assert given_up == ["1-0", "2-0"]
    assert set(run.books.pending) == {1, 2}
    assert run.books.tally.groups_by_cause == {Cause.GRADER: 2}
    assert [pending.requeues for pending in run.books.pending.values()] == [0, 0]
    assert run.is_sound()


def test_a_batch_that_is_rejected_is_none_and_what_is_not_at_fault_is_in_the_next():
    run = Hand(batch_groups=2, depth=1)
    run.admit()
    run.start_all()
    for group in ("0-0", "1-0", "2-0"):
        run.finish(f"{group}/0.0")
    with pytest.raises(LedgerError, match="no batch under way has the groups 0-0"):
        run.accounts.reject({"0-0": "gone"})
    before = run.books.version
    run.accounts.consume(run.choose())
    for wrong in ({}, {"2-0": "not of this batch"}, {"0-0": "gone", "2-0": "not"}):
        with pytest.raises(LedgerError):
            run.accounts.reject(wrong)
    run.accounts.reject({"0-0": "gone"})
    assert not run.books.is_training
    assert run.books.version == before
    assert set(run.books.pending) == {0}
    assert run.books.pending[0].requeues == 1
    assert run.choose().ids == ("1-0", "2-0")
    run.accounts.consume(run.choose())
    run.reopen()
    assert run.books.is_training
    run.accounts.commit()
    assert run.is_sound()
