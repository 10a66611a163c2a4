"""The books: the effect of each event; an event that does not fit has none."""

import pytest
from driven_run import DrivenRun

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.ledger.books.group import MemberState, split_ticket
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.events import Admitted, Committed, Consumed, Started
from plimsoll.ledger.journal import snapshot
from plimsoll.trials.verdicts import CAUSES, Cause


def test_an_admitted_group_is_live_and_its_rollouts_count_as_running():
    run = DrivenRun(group_size=3)
    groups = run.admit()
    assert [group.id for group in groups] == ["0-0", "1-0", "2-0", "3-0"]
    assert (run.books.live, run.books.running, run.books.buffered) == (4, 12, 0)
    assert run.accounts.waiting()[:4] == ["0-0/0.0", "0-0/1.0", "0-0/2.0", "1-0/0.0"]
    assert run.is_sound()


def test_a_started_ticket_takes_the_current_version():
    run = DrivenRun()
    run.admit()
    assert run.accounts.start("0-0/0.0", "w1")
    assert "0-0/0.0" not in run.accounts.waiting()
    member = run.books.groups["0-0"].members[0]
    assert (member.state, member.head, member.worker) == (MemberState.RUNNING, FIRST_VERSION, "w1")


def test_start_is_idempotent_and_a_second_worker_is_rejected():
    run = DrivenRun()
    run.admit()
    assert run.accounts.start("0-0/0.0", "w1")
    written = len(run.store.events)
    assert run.accounts.start("0-0/0.0", "w1")
    assert len(run.store.events) == written
    assert not run.accounts.start("0-0/0.0", "w2")
    assert run.books.groups["0-0"].members[0].worker == "w1"


def test_a_group_is_ready_once_every_member_is_final():
    run = DrivenRun(group_size=2)
    run.admit()
    run.finish("0-0/0.0")
    assert run.books.buffered == 0
    run.finish("0-0/1.0")
    assert run.books.buffered == 1
    assert run.is_sound()


@pytest.mark.parametrize(
    "ticket",
    ["9-9/0.0", "0-0/7.0", "0-0/0.5", "nonsense", "", "0-0/00.0", "0-0/².0", "0-0/٠.0", "0-0/-1.0"],
)
def test_a_completion_for_an_unknown_ticket_is_counted_and_changes_nothing(ticket: str):
    run = DrivenRun()
    run.admit()
    before = snapshot.dump(run.books)
    assert not run.finish(ticket)
    assert run.books.tally.ignored == {"Finished": 1}
    run.books.tally.ignored.clear()
    assert snapshot.dump(run.books) == before


def test_a_second_completion_of_any_content_changes_nothing():
    run = DrivenRun()
    run.admit()
    run.finish("0-0/0.0")
    assert not run.finish("0-0/0.0")
    assert not run.void("0-0/0.0")
    assert run.books.groups["0-0"].members[0].reward == 1.0
    assert run.books.tally.ignored == {"Finished": 1, "Voided": 1}
    assert run.books.tally.graded == 1


def test_a_completion_for_an_abandoned_group_changes_nothing():
    run = DrivenRun(group_policy="void")
    run.admit()
    run.void("0-0/0.0")
    assert not run.finish("0-0/0.0")
    assert run.books.tally.voided == 1
    assert run.is_sound()


def test_events_that_do_not_fit_are_not_applied():
    run = DrivenRun()
    run.admit()
    before = snapshot.dump(run.books)
    unfit = [
        Admitted(group="0-0", prompt=0, task="t", head=FIRST_VERSION, size=1),
        Admitted(group="9-0", prompt=9, task="t", head=FIRST_VERSION, size=1),
        Started(ticket="5-0/0.0", version=FIRST_VERSION),
        Consumed(version=FIRST_VERSION, groups=("0-0", "1-0")),
        Consumed(version=FIRST_VERSION, groups=()),
        Consumed(version=Version(0, 1), groups=("0-0",)),
        Committed(version=Version(0, 1)),
    ]
    assert [run.books.apply(event) for event in unfit] == [False] * len(unfit)
    assert snapshot.dump(run.books) == before


def test_a_group_is_consumed_once_and_leaves_when_its_step_is_committed():
    run = DrivenRun()
    run.admit()
    for n in range(2):
        run.finish(f"{n}-0/0.0")
    batch = run.choose()
    run.accounts.consume(batch)
    assert [group.id for group in run.books.training] == ["0-0", "1-0"]
    assert not run.books.apply(Consumed(version=FIRST_VERSION, groups=batch.ids))
    assert run.accounts.commit() == Version(0, 1)
    assert (run.books.live, run.books.tally.consumed) == (2, 2)
    assert not run.books.apply(Consumed(version=Version(0, 1), groups=batch.ids))
    assert run.is_sound()


def test_a_void_group_frees_its_capacity_and_its_prompt_comes_first():
    run = DrivenRun(group_policy="void")
    run.admit()
    run.void("2-0/0.0", Cause.CANCELLED)
    run.void("1-0/0.0", Cause.CANCELLED)
    assert run.books.live == 2
    assert [group.id for group in run.admit()] == ["1-1", "2-1"]
    assert run.books.tally.requeued == 2
    assert run.is_sound()


def test_a_prompt_is_requeued_up_to_the_limit_then_its_task_is_excluded():
    run = DrivenRun(group_policy="void", requeues=2, batch_groups=1, depth=0, max_staleness=0)
    for attempt in range(3):
        [group] = run.admit()
        assert group.id == f"0-{attempt}"
        run.void(f"{group.id}/0.0", Cause.CANCELLED)
    [task] = run.books.quarantined
    assert run.books.quarantined[task].startswith("void 3 times; last: cancelled, a member is void")
    assert [group.prompt for group in run.admit()] == [1]
    assert run.is_sound()


def test_a_requeued_prompt_of_a_task_to_blame_does_not_delay_others():
    run = DrivenRun(group_policy="void", requeues=2, batch_groups=1, depth=0, max_staleness=0)
    tried: list[str] = []
    while not run.books.quarantined:
        [group] = run.admit()
        tried.append(group.id)
        if group.prompt == 0:
            run.void(f"{group.id}/0.0")
        else:
            run.step()
        run.reopen()
    assert tried == ["0-0", "1-0", "2-0", "0-1", "3-0", "4-0", "0-2"]
    [task] = run.books.quarantined
    assert run.books.quarantined[task] == "void 3 times; last: task, a member is void"
    assert run.is_sound()


def test_a_prompt_of_the_only_task_is_requeued_at_once():
    # The second order has two epochs, and would repeat the task beside the first prompt.
    for order in (DataOrder(["a", "b"], epochs=1), DataOrder(["a"], epochs=2)):
        run = DrivenRun(group_policy="void", requeues=2, batch_groups=1, depth=0, max_staleness=0)
        broken = order.epoch(0)[-1]
        tried: list[int] = []
        while groups := run.accounts.admit(order):
            [group] = groups
            if group.task == broken:
                run.void(f"{group.id}/0.0")
                tried.append(group.attempt)
            else:
                run.step()
        assert tried == [0, 1, 2]
        assert list(run.books.quarantined) == [broken]
        assert run.is_sound()


def test_the_count_of_requeues_survives_a_restart():
    run = DrivenRun(group_policy="void", requeues=1, batch_groups=1, depth=0, max_staleness=0)
    run.admit()
    run.void("0-0/0.0", Cause.CANCELLED)
    run.reopen()
    run.admit()
    run.void("0-1/0.0", Cause.CANCELLED)
    assert len(run.books.quarantined) == 1


def test_prompts_of_an_excluded_task_are_skipped_and_counted():
    run = DrivenRun(group_policy="void", requeues=0)
    run.admit()
    [task] = {group.task for group in run.books.groups.values() if group.prompt == 0}
    run.void("0-0/0.0")
    for _ in range(40):
        run.step()
    assert run.books.quarantined.keys() == {task}
    assert run.books.tally.quarantined >= 2
    assert run.is_sound()


def test_policy_complete_replaces_a_void_member():
    run = DrivenRun(group_size=2, group_policy="complete")
    run.admit()
    run.finish("0-0/0.0")
    run.void("0-0/1.0", Cause.CANCELLED)
    assert run.books.groups["0-0"].tickets == ["0-0/0.0", "0-0/1.1"]
    run.finish("0-0/1.1")
    assert run.books.buffered == 1


def test_policy_complete_gives_up_a_repeatedly_void_member():
    run = DrivenRun(group_size=2, group_policy="complete", requeues=2)
    run.admit()
    for attempt in range(2):
        assert run.void(f"0-0/1.{attempt}", Cause.CANCELLED)
        assert "0-0" in run.books.groups
    run.void("0-0/1.2", Cause.CANCELLED)
    assert "0-0" not in run.books.groups


@pytest.mark.parametrize("cause", [Cause.GRADER, Cause.TASK])
def test_policy_complete_follows_the_table_of_causes_if_the_task_is_to_blame(
    cause: Cause,
):
    run = DrivenRun(group_size=2, group_policy="complete", requeues=3)
    run.admit()
    run.finish("0-0/0.0")
    for attempt in range(CAUSES[cause].retries):
        run.void(f"0-0/1.{attempt}", cause)
        assert "0-0" in run.books.groups
    run.void(f"0-0/1.{CAUSES[cause].retries}", cause)
    assert "0-0" not in run.books.groups
    assert run.is_sound()


def test_policy_min_graded_accepts_fewer_members():
    run = DrivenRun(group_size=3, group_policy="min_graded", min_graded=2)
    run.admit()
    run.void("0-0/0.0")
    run.finish("0-0/1.0")
    assert run.books.buffered == 0
    run.finish("0-0/2.0")
    assert run.books.buffered == 1
    run.void("1-0/0.0")
    run.void("1-0/1.0")
    run.finish("1-0/2.0")
    assert "1-0" not in run.books.groups
    assert run.is_sound()


def test_policy_void_gives_the_group_up_after_the_retries_of_the_table():
    run = DrivenRun(group_size=2, group_policy="void")
    run.admit()
    run.void("0-0/0.0", Cause.SANDBOX)
    run.void("0-0/0.1", Cause.SANDBOX)
    assert "0-0" in run.books.groups
    run.void("0-0/0.2", Cause.SANDBOX)
    assert "0-0" not in run.books.groups


def test_the_ages_of_the_head_and_of_the_oldest_token_are_both_counted():
    run = DrivenRun(batch_groups=1, depth=2, max_staleness=4)
    run.admit()
    run.start_all()
    run.finish("0-0/0.0")
    run.accounts.consume(run.choose())
    one = run.accounts.commit()
    run.finish("1-0/0.0", one)  # started at 0, all its tokens are of 1
    run.accounts.consume(run.choose())
    run.accounts.commit()
    run.finish("2-0/0.0", FIRST_VERSION, one)
    run.accounts.consume(run.choose())
    run.accounts.commit()
    assert run.books.tally.head_ages == {0: 1, 1: 1, 2: 1}
    assert run.books.tally.token_ages == {0: 2, 2: 1}


def test_tokens_older_than_announced_at_the_start_count():
    run = DrivenRun(batch_groups=1, depth=1, max_staleness=2)
    for _ in range(3):
        run.step(leave=("1-0",) if run.books.version.number < 1 else ())
    run.admit()
    run.start_all()
    [late, *_] = [group for group in run.books.groups.values() if not group.final]
    assert late.head.number == 3
    run.finish(late.ticket(0), FIRST_VERSION)  # three versions old, two are allowed
    assert late.id not in run.books.groups
    assert run.books.tally.groups_by_cause[Cause.STALE] == 1
    assert run.is_sound()


def test_a_retried_ticket_makes_its_group_younger():
    run = DrivenRun(batch_groups=1, depth=2, max_staleness=3)
    run.admit()
    run.start_all()
    for _ in range(2):
        run.step(leave=("0-0",))
    assert run.books.groups["0-0"].head.number == 0
    run.void("0-0/0.0", Cause.LOST)
    assert run.books.groups["0-0"].head.number == 2


def test_abandoned_rollouts_count_in_the_duration_bias():
    run = DrivenRun(batch_groups=1, depth=1, max_staleness=1, group_policy="min_graded", requeues=9)
    run.admit()
    run.start_all()
    run.clock.now = 99.0
    run.finish("1-0/0.0", seconds=1.0)
    run.accounts.consume(run.choose())
    run.accounts.commit()
    run.admit()
    run.start_all()
    run.finish("2-0/0.0", seconds=1.0)
    assert run.waits().due == ("0-0",)
    run.accounts.attend("0-0", slack_left=False, can_resume=False)
    tally = run.books.tally
    assert (tally.offered, tally.offered_seconds) == (3, 101.0)
    assert tally.duration_bias == pytest.approx(1 / (101 / 3))


def test_a_ticket_has_one_name():
    assert split_ticket("eval-a/b-0/2.11") == ("eval-a/b-0", 2, 11)
    for other in ("a/02.0", "a/2", "a/2.", "/0.0", "a/2.0 ", "a/²0.0", "a/1e3.0"):
        assert split_ticket(other) is None
