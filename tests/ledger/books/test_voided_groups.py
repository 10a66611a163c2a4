"""Groups that a run gives up itself: admission stays bounded, and their prompts are requeued."""

import pytest
from driven_run import ORDER, DrivenRun

from plimsoll.core.errors import LedgerError
from plimsoll.ledger.books.group import MemberState
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.events import Skipped
from plimsoll.ledger.rules.batching import Batch
from plimsoll.trials.verdicts import CAUSES, Cause, Void


def test_admit_respects_its_maximum():
    run = DrivenRun(batch_groups=2, depth=1)
    assert len(run.accounts.admit(ORDER, 1)) == 1
    assert run.accounts.admit(ORDER, 0) == []
    assert len(run.accounts.admit(ORDER, 99)) == 3
    assert run.is_sound()


def test_a_rollout_cancelled_by_the_run_is_always_retried():
    for policy in ("complete", "min_graded", "void"):
        run = DrivenRun(group_policy=policy, requeues=0)
        run.admit()
        run.start_all()
        stopped = Void(Cause.CANCELLED, "the run was stopped")
        assert run.accounts.void("0-0/0.0", stopped, again=True)
        (member,) = run.books.groups["0-0"].members
        assert (member.state, member.attempt) == (MemberState.WAITING, 1)
        assert not run.books.quarantined
        assert run.is_sound()


def test_stops_do_not_count_towards_retry_limits():
    run = DrivenRun(requeues=3)
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


@pytest.mark.parametrize("policy", ["complete", "min_graded", "void"])
@pytest.mark.parametrize("cause", [Cause.LOST, Cause.POLICY, Cause.SANDBOX])
def test_restarts_do_not_count_towards_retry_limits(policy, cause):
    def tries(restarts: int) -> int:
        run = DrivenRun(group_policy=policy, requeues=2)
        run.admit()
        for _ in range(restarts):
            run.start_all()
            run.reopen()
            run.recover(run.books.version)
        group = run.books.groups["0-0"]
        count = 0
        while "0-0" in run.books.groups and not group.final:
            run.void(group.ticket(0), cause)
            count += 1
        assert run.is_sound()
        return count

    assert tries(restarts=9) == tries(restarts=0) > 1


def all_out(cause: Cause, names: list[str]) -> tuple[DrivenRun, DataOrder]:
    """A run whose tasks are all excluded, each for one void rollout too many."""
    run, order = DrivenRun(group_policy="void", requeues=0), DataOrder(names, epochs=2)
    while groups := run.accounts.admit(order):
        for group in groups:
            while group.id in run.books.groups:
                run.void(group.ticket(0), cause)
    assert set(run.books.quarantined) == set(names)
    return run, order


def test_tasks_excluded_through_no_fault_of_their_own_return_at_a_resume():
    names = ["a", "b", "c", "d"]
    for cause in (cause for cause in Cause if not CAUSES[cause].against_task):
        run, order = all_out(cause, names)
        run.reopen()
        run.recover(run.books.version)
        assert sorted(run.accounts.readmit(["a", "b", "c"])) == ["a", "b", "c"]
        assert "resuming tries it again" in run.books.quarantined.pop("d")
        assert not run.books.quarantined
        run.reopen()
        assert [p.requeues for p in run.books.pending.values()] == [0, 0, 0]
        assert run.accounts.readmit(["a", "b", "c"]) == []
        while run.accounts.admit(order):
            for ticket in run.accounts.waiting():
                run.finish(ticket)
            if run.books.buffered >= 2:
                run.accounts.consume(run.choose())
                run.accounts.commit()
        # The voided prompts are trained on once, and so are all of the second epoch.
        assert run.books.tally.consumed + run.books.buffered == 6
        assert run.store.auditor.against(run.books) == []
        assert run.is_sound()


def test_tasks_to_blame_stay_excluded():
    for cause in (cause for cause in Cause if CAUSES[cause].against_task):
        run, _ = all_out(cause, ["a", "b"])
        assert run.accounts.readmit(["a", "b"]) == []
        assert set(run.books.quarantined) == {"a", "b"}


def test_a_task_to_blame_stays_excluded_after_an_earlier_return():
    run = DrivenRun(group_policy="void", requeues=0)
    order = DataOrder(["a"])
    run.accounts.admit(order)
    for attempt in range(CAUSES[Cause.SANDBOX].retries + 1):
        run.void(f"0-0/0.{attempt}", Cause.SANDBOX)
    assert "sandbox" in run.books.quarantined["a"]
    run.void("1-0/0.0", Cause.TASK)
    assert run.books.quarantined["a"] == "void 1 times; last: task, a member is void"
    assert run.accounts.readmit(["a"]) == []
    assert run.is_sound()


def test_pending_prompts_return_with_their_task_each_time():
    run, order = DrivenRun(group_policy="void", requeues=0), DataOrder(["a", "b"])
    first, second = (group for group in run.accounts.admit(order) if group.task == "a")
    for _ in range(2):
        run.accounts.distrust(second.tickets, Void(Cause.GRADER, "a canary failed"))
        while first.id in run.books.groups:
            run.void(first.ticket(0), Cause.SANDBOX)
        run.accounts.admit(order)
        assert not run.books.pending, "its turn came, and its task is excluded"
        for ticket in run.accounts.waiting():
            run.finish(ticket)
        while isinstance(batch := run.accounts.choose(), Batch):
            run.accounts.consume(batch)
            run.accounts.commit()
        run.reopen()
        run.accounts.readmit(["a", "b"])
        assert set(run.books.pending) == {first.prompt, second.prompt}
        first, second = run.accounts.admit(order, 2)
    assert run.store.auditor.against(run.books) == []
    assert run.is_sound()


def test_a_skipped_prompt_returns_under_its_own_number():
    """It may be skipped again before it is readmitted: that is another event."""
    run, order = DrivenRun(group_policy="void", requeues=0), DataOrder(["a", "b"])
    late, other = (group for group in run.accounts.admit(order) if group.task == "a")
    run.accounts.distrust(late.tickets, Void(Cause.GRADER, "a canary failed"))
    while other.id in run.books.groups:
        run.void(other.ticket(0), Cause.SANDBOX)
    run.accounts.admit(order)
    assert Skipped(prompt=late.prompt, task="a", attempt=1) in run.store.events
    run.accounts.readmit(["a"])
    assert run.books.pending[late.prompt].attempt == 2


def test_distrusted_groups_are_given_up_and_their_prompts_requeued():
    run = DrivenRun(batch_groups=1, depth=2, group_size=2)
    run.admit()
    run.start_all()
    for ticket in ("0-0/0.0", "0-0/1.0", "1-0/0.0", "1-0/1.0", "2-0/0.0"):
        run.finish(ticket)
    run.accounts.consume(run.choose())
    doubt = Void(Cause.GRADER, "a canary failed")
    given_up = run.accounts.distrust(["0-0/0.0", "1-0/1.0", "2-0/0.0", "9-0/0.0", "x"], doubt)
    # Groups in training stay.
    assert given_up == ["1-0", "2-0"]
    assert set(run.books.pending) == {1, 2}
    assert run.books.tally.groups_by_cause == {Cause.GRADER: 2}
    assert [pending.requeues for pending in run.books.pending.values()] == [0, 0]
    assert run.is_sound()


def test_good_groups_of_a_rejected_batch_are_in_the_next():
    run = DrivenRun(batch_groups=2, depth=1)
    run.admit()
    run.start_all()
    for group in ("0-0", "1-0", "2-0"):
        run.finish(f"{group}/0.0")
    with pytest.raises(LedgerError, match="the current batch does not have the groups 0-0"):
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
