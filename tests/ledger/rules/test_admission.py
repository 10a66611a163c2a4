"""Admission: relative to live groups, in whole groups, and separate for evaluations."""

import pytest
from driven_run import ORDER, DrivenRun, settings

from plimsoll.core.errors import LedgerError
from plimsoll.core.versions import Version
from plimsoll.ledger.rules.admission import LastGroups, room, room_for_evaluation
from plimsoll.trials.verdicts import Cause


@pytest.mark.parametrize(
    ("changes", "admitted"),
    [
        ({"max_running": 100, "batch_groups": 3, "depth": 2}, 9),
        ({"max_running": 5, "batch_groups": 3, "depth": 2}, 5),
        ({"max_running": 9, "batch_groups": 3, "depth": 2, "group_size": 4}, 2),
        ({"batch_groups": 3, "depth": 0}, 3),
    ],
)
def test_admits_up_to_the_cap_and_the_depth(changes, admitted):
    run = DrivenRun(**changes)
    assert len(run.admit()) == admitted
    assert run.admit() == []
    assert room(run.books, run.accounts.settings) == 0


def test_finished_rollouts_free_slots_but_a_buffered_group_is_live():
    run = DrivenRun(max_running=2, batch_groups=2, depth=1)
    run.admit()
    run.finish("0-0/0.0")
    assert len(run.admit()) == 1
    run.finish("1-0/0.0")
    run.finish("2-0/0.0")
    assert len(run.admit()) == 1  # four are live now
    run.finish("3-0/0.0")
    assert (run.books.running, run.books.live, run.admit()) == (0, 4, [])


def test_a_batch_being_trained_is_live_until_its_commit():
    run = DrivenRun()
    run.admit()
    for n in range(4):
        run.finish(f"{n}-0/0.0")
    run.accounts.consume(run.choose())
    assert run.admit() == []
    run.accounts.commit()
    assert len(run.admit()) == 2


def test_admission_does_not_depend_on_the_version():
    run = DrivenRun()
    for _ in range(30):
        run.step()
    assert run.books.version == Version(0, 30)
    assert len(run.admit()) == 2
    assert run.books.live == 4


def test_unstarted_training_tickets_block_no_evaluation_after_training():
    run = DrivenRun(max_running=4, group_size=2)
    run.admit()
    run.accounts.start("0-0/0.0", "worker")
    assert run.books.running == 4
    assert run.accounts.admit_evaluation("a", ["t1", "t2", "t3"], 1) == []
    # The running one keeps its slot until it has ended.
    over = run.accounts.admit_evaluation("a", ["t1", "t2", "t3"], 2, training_is_over=True)
    assert [group.id for group in over] == ["eval-a-0"]
    assert room_for_evaluation(run.books, run.accounts.settings, 1, training_is_over=True) == 1
    run.finish("0-0/0.0")
    assert room_for_evaluation(run.books, run.accounts.settings, 1, training_is_over=True) == 2
    assert run.is_sound()


def test_evaluations_share_the_cap_but_not_the_depth_of_training():
    run = DrivenRun(max_running=6)
    before = room(run.books, run.accounts.settings)
    assert before == 4
    assert len(run.accounts.admit_evaluation("a", ["t1", "t2"], 1)) == 2
    assert (run.books.live, run.books.running) == (0, 2)
    assert room(run.books, run.accounts.settings) == 4
    run.admit()
    assert run.books.running == 6
    assert room_for_evaluation(run.books, run.accounts.settings, 1) == 0
    assert run.accounts.admit_evaluation("b", ["t1"], 1) == []


def test_a_finished_evaluation_does_not_change_training():
    run = DrivenRun()
    run.admit()
    run.accounts.admit_evaluation("a", ["t1", "t2"], 2)
    for ticket in ("eval-a-0/0.0", "eval-a-0/1.0"):
        run.accounts.start(ticket, "w")
        run.finish(ticket)
    tally = run.books.tally
    assert (tally.evaluated, tally.graded, tally.admitted, run.books.buffered) == (1, 0, 4, 0)
    assert list(run.books.evals) == ["eval-a-1"]
    assert run.is_sound()


def test_names_of_evaluations_are_unique():
    run = DrivenRun()
    assert run.accounts.evaluation_name("a") == "a"
    run.accounts.admit_evaluation("a", ["t1"], 1)
    run.finish("eval-a-0/0.0")
    for _ in range(2):
        with pytest.raises(LedgerError, match="called 'a' before"):
            run.accounts.admit_evaluation("a", ["t1"], 1)
        assert run.accounts.evaluation_name("a") == "a.2"
        run.reopen()
    assert len(run.accounts.admit_evaluation("a.2", ["t1"], 1)) == 1
    assert run.accounts.evaluation_name("a") == "a.3"


def test_only_an_abandoned_evaluation_frees_its_slots():
    run = DrivenRun(max_running=6)
    run.accounts.admit_evaluation("a", ["t1", "t2"], 1)
    run.accounts.admit_evaluation("a-1", ["t1"], 2)
    run.accounts.start("eval-a-0/0.0", "w")
    run.accounts.give_up_evaluation("a")
    assert list(run.books.evals) == ["eval-a-1-0"]
    assert run.books.running == 2
    assert not run.finish("eval-a-0/0.0")
    assert run.accounts.waiting() == ["eval-a-1-0/0.0", "eval-a-1-0/1.0"]
    assert run.is_sound()


def test_tickets_of_evaluations_come_before_those_of_training():
    run = DrivenRun()
    run.admit()
    run.accounts.admit_evaluation("a", ["t"] * 5, 1)
    evals = [f"eval-a-{n}/0.0" for n in range(5)]
    assert run.accounts.waiting() == [*evals, "0-0/0.0", "1-0/0.0", "2-0/0.0", "3-0/0.0"]


def test_void_evaluation_rollouts_do_not_count_for_training():
    run = DrivenRun()
    run.accounts.admit_evaluation("a", ["t1"], 1)
    run.void("eval-a-0/0.0", Cause.GRADER)
    assert run.books.tally.tickets_by_cause == {}
    assert run.is_sound()


def test_an_evaluation_waits_for_free_slots_and_continues():
    run = DrivenRun(max_running=4)
    run.admit()
    run.finish("0-0/0.0")
    assert [g.id for g in run.accounts.admit_evaluation("a", ["t1", "t2"], 1)] == ["eval-a-0"]
    run.finish("1-0/0.0")
    later = run.accounts.admit_evaluation("a", ["t1", "t2"], 1, begun=1)
    assert [g.id for g in later] == ["eval-a-1"]


def test_nothing_is_admitted_without_tasks():
    run = DrivenRun(group_policy="void", requeues=0)
    for _ in range(50):
        for group in run.accounts.admit(ORDER):
            run.void(group.ticket(0))
    assert len(run.books.quarantined) == 50
    assert run.admit() == []
    assert run.is_sound()


def test_most_live_is_depth_plus_one_batches():
    assert settings(batch_groups=3, depth=4, max_staleness=4).most_live == 15


def test_only_the_last_batch_lacks_running_groups():
    run = DrivenRun(batch_groups=2, depth=1)
    run.admit()
    run.start_all()

    def most(steps: int, *, waited: float = 9.0) -> int:
        last = LastGroups(slack=9.0)
        last.most(run.books, run.accounts.settings, steps, now=100.0)
        return last.most(run.books, run.accounts.settings, steps, now=100.0 + waited)

    assert most(3) == 2  # others may be admitted
    assert (most(2, waited=8.0), most(2)) == (0, 2)
    run.finish("0-0/0.0")
    assert most(2) == 1
    run.finish("1-0/0.0")
    assert most(2) == 0  # a batch is ready
    run.accounts.consume(run.choose())
    assert most(2) == 0  # one batch is in training
    run.accounts.commit()
    assert most(1) == 2
