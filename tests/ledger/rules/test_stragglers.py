"""Stragglers: each remedy in order, and none while no group is due."""

import pytest
from driven_run import DrivenRun

from plimsoll.core.versions import Version
from plimsoll.ledger.rules.batching import Batch
from plimsoll.ledger.rules.stragglers import MOST_RESUMES, Remedy
from plimsoll.trials.verdicts import Cause


def straggling_run(**changes) -> DrivenRun:
    """A run in which group 0-0 is due and still runs; another is ready to take its place."""
    run = DrivenRun(**{"batch_groups": 1, "depth": 1, "max_staleness": 1, **changes})
    run.admit()
    run.start_all()
    run.step(leave=("0-0",))
    finish_others(run)
    assert run.waits().due == ("0-0",)
    return run


def finish_others(run: DrivenRun) -> None:
    run.admit()
    run.start_all()
    for group in list(run.books.groups.values()):
        if group.id != "0-0":
            for index, member in enumerate(group.members):
                if not member.final:
                    run.finish(group.ticket(index))


def make_due_again(run: DrivenRun) -> None:
    """Train on other groups until group 0-0 is due again."""
    while isinstance(choice := run.accounts.choose(), Batch):
        run.accounts.consume(choice)
        run.accounts.commit()
        finish_others(run)
    assert choice.due == ("0-0",)


def attend(run: DrivenRun, **changes) -> Remedy | None:
    return run.accounts.attend("0-0", **{"slack_left": False, "can_resume": False, **changes})


def test_the_first_remedy_is_to_wait():
    run = straggling_run()
    written = len(run.store.events)
    assert attend(run, slack_left=True, can_resume=True) is Remedy.WAIT
    assert len(run.store.events) == written


def test_the_second_remedy_is_to_resume_with_newer_weights():
    run = straggling_run()
    assert attend(run, can_resume=True) is Remedy.RESUME
    assert run.books.groups["0-0"].head == Version(0, 1)
    assert run.choose().ids == ("2-0",)
    run.accounts.consume(run.choose())
    run.accounts.commit()
    run.finish("0-0/0.0", Version(0, 0), Version(0, 1))
    run.accounts.consume(run.choose())
    run.accounts.commit()
    # Its earlier tokens are not trained on: the others are one version old, not two.
    assert run.books.tally.token_ages == {0: 2, 1: 1}
    assert run.is_sound()


def test_the_number_of_resumes_is_bounded():
    run = straggling_run()
    for _ in range(MOST_RESUMES):
        assert attend(run, can_resume=True) is Remedy.RESUME
        make_due_again(run)
    assert attend(run, can_resume=True, slack_left=True) is Remedy.WAIT
    assert attend(run, can_resume=True) is Remedy.REQUEUE
    assert run.books.pending[0].requeues == 1
    assert run.is_sound()


def test_a_group_with_only_withheld_members_running_is_given_up():
    """None of its tokens would be trained on, for any rewards."""
    run = straggling_run(group_size=2, group_policy="min_graded")
    run.void("0-0/1.0", Cause.SANDBOX)
    run.start_all()
    assert attend(run) is Remedy.WITHHOLD
    run.void("0-0/1.1", Cause.TASK)
    assert [member.withheld for member in run.books.groups["0-0"].members] == [True, False]
    make_due_again(run)
    assert attend(run, can_resume=True, slack_left=True) is Remedy.WAIT
    assert attend(run, can_resume=True) is Remedy.REQUEUE


def test_ended_members_are_withheld_when_the_others_resume():
    run = straggling_run(group_size=2)
    run.finish("0-0/0.0")
    assert attend(run, can_resume=True) is Remedy.RESUME
    first, second = run.books.groups["0-0"].members
    assert (first.withheld, second.withheld) == (True, False)
    assert (first.reward, second.resumed) == (1.0, True)


def test_the_third_remedy_is_to_withhold_members_that_are_too_old():
    run = straggling_run(group_size=2)
    run.void("0-0/1.0", Cause.SANDBOX)
    run.start_all()
    assert attend(run) is Remedy.WITHHOLD
    group = run.books.groups["0-0"]
    assert [member.withheld for member in group.members] == [True, False]
    assert group.head == Version(0, 1)
    run.accounts.consume(run.choose())
    run.accounts.commit()
    run.finish("0-0/0.0")
    run.finish("0-0/1.1")
    run.accounts.consume(run.choose())
    run.accounts.commit()
    assert run.books.tally.withheld == 1
    assert max(run.books.tally.head_ages) == 1
    assert run.is_sound()


def test_members_are_not_withheld_if_the_others_are_void():
    run = straggling_run(group_size=2, group_policy="min_graded")
    run.void("0-0/1.0")
    assert attend(run) is Remedy.REQUEUE


def test_the_fourth_remedy_is_to_requeue_the_prompt():
    run = straggling_run()
    assert attend(run) is Remedy.REQUEUE
    assert run.books.pending[0].requeues == 1
    assert run.books.tally.groups_by_cause == {Cause.STALE: 1}
    assert run.choose().ids == ("2-0",)
    assert [group.id for group in run.admit()] == ["0-1"]


def test_the_last_remedy_is_to_exclude_the_task():
    run = straggling_run(requeues=0)
    assert attend(run) is Remedy.QUARANTINE
    assert len(run.books.quarantined) == 1
    assert 0 not in run.books.pending
    assert run.is_sound()


def test_a_group_that_is_not_due_is_unchanged():
    run = straggling_run()
    written = len(run.store.events)
    assert run.accounts.attend("2-0", slack_left=False, can_resume=False) is None
    assert run.accounts.attend("nobody", slack_left=False, can_resume=False) is None
    run.finish("0-0/0.0")
    assert attend(run) is None
    assert len(run.store.events) == written + 1


def test_an_unstarted_group_takes_the_current_version_at_once():
    run = DrivenRun(batch_groups=1, depth=1, max_staleness=1)
    run.admit()
    run.accounts.start("1-0/0.0", "w")
    run.finish("1-0/0.0")
    run.accounts.consume(run.choose())
    run.accounts.commit()
    run.admit()
    run.accounts.start("2-0/0.0", "w")
    run.finish("2-0/0.0")
    assert run.waits().due == ("0-0",)
    assert attend(run, slack_left=True) is Remedy.RESUME
    assert run.books.groups["0-0"].head == Version(0, 1)
    assert run.choose().ids == ("2-0",)
    assert run.is_sound()


@pytest.mark.parametrize("can_resume", [True, False])
def test_attend_is_idempotent(can_resume: bool):
    run = straggling_run(group_size=2)
    run.finish("0-0/0.0")
    attend(run, can_resume=can_resume)
    written = len(run.store.events)
    assert attend(run, can_resume=can_resume) is None
    assert len(run.store.events) == written
    assert run.is_sound()
