"""Recovery: the same books; nothing skipped, nothing twice, no abandoned lineage trained on."""

import dataclasses

import pytest
from driven_run import DrivenRun, settings

from plimsoll.core.errors import LedgerError
from plimsoll.core.versions import FIRST_VERSION, Lineages, Version
from plimsoll.ledger.books.group import MemberState
from plimsoll.ledger.journal import snapshot
from plimsoll.ledger.simulator.scenario import Faults, Plan
from plimsoll.ledger.simulator.training import Training
from plimsoll.trials.verdicts import Cause


def consuming() -> DrivenRun:
    """A run at version 1 whose second batch is in training."""
    run = DrivenRun()
    run.step()
    run.admit()
    run.start_all()
    run.accounts.consume(run.choose())
    return run


def test_a_reopened_run_has_the_same_books():
    run = consuming()
    before = snapshot.dump(run.books)
    run.reopen()
    assert snapshot.dump(run.books) == before


def test_running_tickets_of_a_dead_worker_are_lost_and_retried():
    run = DrivenRun()
    run.admit()
    run.start_all()
    run.finish("0-0/0.0")
    run.reopen()
    run.recover(FIRST_VERSION)
    assert run.books.buffered == 1  # finished rollouts are kept
    assert run.accounts.waiting() == ["1-0/0.1", "2-0/0.1", "3-0/0.1"]
    assert run.books.tally.tickets_by_cause == {Cause.LOST: 3}
    assert not run.finish("1-0/0.0")  # too late
    assert run.is_sound()


def test_running_tickets_of_a_live_worker_are_adopted():
    run = DrivenRun()
    run.admit()
    run.start_all()
    run.reopen()
    run.recover(FIRST_VERSION, alive=True)
    assert run.accounts.waiting() == []
    assert run.finish("1-0/0.0")
    assert run.is_sound()


def test_is_alive_is_called_with_each_running_ticket_and_its_worker():
    run = DrivenRun()
    run.admit()
    run.accounts.start("0-0/0.0", "w1")
    run.accounts.start("1-0/0.0", "w2")
    run.accounts.recover(FIRST_VERSION, lambda _, worker: worker == "w2")
    states = [group.members[0].state for group in run.books.groups.values()]
    assert states == [MemberState.WAITING, MemberState.RUNNING, *[MemberState.WAITING] * 2]


def test_a_checkpoint_without_its_commit_event_is_rolled_forward():
    run = consuming()
    run.reopen()
    assert run.recover(Version(0, 2)) == Version(0, 2)
    assert run.books.tally.consumed == 4
    assert run.books.rollbacks == 0
    assert run.is_sound()


def test_an_unfinished_step_is_undone_and_its_batch_is_ready_again():
    run = consuming()
    batch = tuple(group.id for group in run.books.training)
    run.reopen()
    # A new lineage: the step's weights may have been published and have generated tokens.
    assert run.recover(Version(0, 1)) == Version(1, 1)
    assert not run.books.is_training
    assert run.choose().ids == batch
    run.accounts.consume(run.choose())
    run.accounts.commit()
    assert run.is_sound()


def test_recovery_is_idempotent():
    run = consuming()
    version = run.recover(Version(0, 1))
    before = snapshot.dump(run.books)
    for _ in range(2):
        run.reopen()
        run.recover(version)
    assert snapshot.dump(run.books) == before


def published() -> DrivenRun:
    """A run whose second step is published and not committed: 2-0 has tokens of it."""
    run = DrivenRun(batch_groups=1, depth=2, max_staleness=2)
    run.step()
    run.admit()
    run.start_all()
    run.accounts.consume(run.choose())
    assert run.finish("3-0/0.0", Version(0, 1), Version(0, 2))
    return run


def test_tokens_of_the_step_being_committed_are_accepted():
    run = published()
    (early,) = run.books.groups["3-0"].members
    assert (early.state, early.oldest, early.newest) == ("graded", Version(0, 1), Version(0, 2))
    run.accounts.commit()
    assert run.books.tally.dead_lineage == 0
    for group in (g for g in list(run.books.groups.values()) if not g.final):
        run.finish(group.ticket(0))
    while "3-0" in run.books.groups:
        run.accounts.consume(run.choose())
        run.accounts.commit()
    assert run.is_sound()


def test_tokens_of_other_future_versions_are_rejected():
    run = DrivenRun(batch_groups=1)
    run.admit()
    run.start_all()
    run.finish("0-0/0.0", FIRST_VERSION)
    run.finish("1-0/0.0", FIRST_VERSION, Version(0, 1))  # nothing is in training
    assert run.books.tally.dead_lineage == 1
    run.accounts.consume(run.choose())
    run.finish("1-0/0.1", FIRST_VERSION, Version(0, 2))  # the step makes version 1
    assert run.books.tally.dead_lineage == 2
    assert run.books.groups["1-0"].tickets == ["1-0/0.2"]
    assert run.is_sound()


def test_tokens_of_a_published_uncommitted_step_are_not_trained_on():
    run = published()
    run.reopen()
    run.recover(Version(0, 1))
    assert "3-0" not in run.books.groups
    assert 3 in run.books.pending
    run.accounts.consume(run.choose())
    assert run.accounts.commit() == Version(1, 2)
    assert run.is_sound()


def test_uncommitted_tokens_of_a_surviving_rollout_are_not_trained_on():
    run = DrivenRun(batch_groups=1, depth=2, max_staleness=2)
    run.step()
    run.admit()
    run.start_all()
    run.accounts.consume(run.choose())
    run.recover(Version(0, 1), alive=True)
    run.accounts.consume(run.choose())  # the step again, which makes other weights
    run.finish("3-0/0.0", Version(0, 1), Version(0, 2))
    assert run.books.groups["3-0"].tickets == ["3-0/0.1"]
    assert run.books.tally.dead_lineage == 1
    assert run.is_sound()


def test_a_published_step_with_a_complete_checkpoint_is_committed_with_its_tokens():
    run = published()
    run.reopen()
    assert run.recover(Version(0, 2)) == Version(0, 2)
    assert run.books.groups["3-0"].final
    assert run.books.tally.dead_lineage == 0
    assert run.is_sound()


def test_running_evaluations_end_at_a_recovery_and_free_their_slots():
    run = DrivenRun(max_running=4)
    run.accounts.admit_evaluation("a", ["t1", "t2"], 1)
    run.accounts.start("eval-a-0/0.0", "w")
    run.reopen()
    run.recover(FIRST_VERSION, alive=True)
    assert (run.books.evals, run.books.running, run.accounts.waiting()) == ({}, 0, [])
    assert not run.finish("eval-a-0/0.0")
    assert run.accounts.evaluation_name("a") == "a.2"
    assert run.is_sound()


def test_a_rollback_begins_a_lineage_and_later_groups_are_live_again():
    run = DrivenRun(depth=0, max_staleness=1)
    for _ in range(3):
        run.step()
    assert run.recover(Version(0, 2)) == Version(1, 2)
    # Prompts 4 and 5 were generated at version 2 and trained on then: they are fresh again.
    assert list(run.books.groups) == ["4-0", "5-0"]
    assert (run.books.buffered, run.books.tally.consumed) == (2, 4)
    assert run.choose().ids == ("4-0", "5-0")
    assert run.is_sound()


def test_tokens_of_an_abandoned_version_are_never_trained_on():
    run = DrivenRun(depth=0, max_staleness=1)
    for _ in range(3):
        run.step()
    assert run.recover(Version(0, 1)) == Version(1, 1)
    # Prompts 2 and 3 are of version 1; 4 and 5 are of version 2, which was rolled back.
    assert list(run.books.groups) == ["2-0", "3-0"]
    assert run.books.pending.keys() == {4, 5}
    assert {pending.requeues for pending in run.books.pending.values()} == {0}
    assert run.is_sound()


def test_a_rollout_with_a_token_of_an_abandoned_version_is_not_trained_on():
    run = DrivenRun(batch_groups=1, depth=1, max_staleness=3)
    run.admit()
    run.start_all()
    run.finish("0-0/0.0", FIRST_VERSION)
    run.accounts.consume(run.choose())
    one = run.accounts.commit()
    # Its head is 0, which stays; its last tokens are of 1.
    run.finish("1-0/0.0", FIRST_VERSION, one)
    run.recover(FIRST_VERSION)
    assert "1-0" not in run.books.groups
    assert 1 in run.books.pending
    assert run.is_sound()


def test_a_rollout_that_ends_after_the_rollback_with_abandoned_tokens_is_retried():
    run = DrivenRun(batch_groups=1, depth=1, max_staleness=3)
    run.admit()
    run.start_all()
    run.finish("0-0/0.0", FIRST_VERSION)
    run.accounts.consume(run.choose())
    one = run.accounts.commit()
    run.recover(FIRST_VERSION, alive=True)
    run.finish("1-0/0.0", FIRST_VERSION, one)
    assert run.books.groups["1-0"].tickets == ["1-0/0.1"]
    assert run.books.tally.dead_lineage == 1
    assert run.is_sound()


def test_the_same_number_in_another_lineage_is_another_version():
    lineages = Lineages()
    lineages.branch(1, Version(0, 5))
    assert lineages.descends(Version(1, 9), Version(0, 5))
    assert lineages.descends(Version(1, 9), Version(1, 5))
    assert not lineages.descends(Version(1, 9), Version(0, 6))
    assert not lineages.descends(Version(0, 9), Version(1, 6))
    lineages.branch(2, Version(1, 7))
    assert lineages.descends(Version(2, 8), Version(0, 4))
    assert not lineages.descends(Version(2, 8), Version(1, 8))
    assert lineages.next_lineage() == 3


def test_a_lineage_has_no_versions_below_its_branch_point():
    lineages = Lineages()
    lineages.branch(1, Version(0, 5))
    lineages.branch(2, Version(1, 7))
    assert not lineages.descends(Version(1, 9), Version(1, 4))
    assert not lineages.descends(Version(2, 8), Version(1, 4))
    assert not lineages.descends(Version(2, 8), Version(2, 6))
    assert not lineages.descends(Version(2, 6), Version(1, 6)), "no such version to descend"
    assert not lineages.descends(Version(0, 3), Version(0, -1))
    assert lineages.descends(Version(2, 7), Version(1, 7))


def test_a_rollout_with_tokens_of_a_version_below_the_branch_point_is_not_trained_on():
    run = DrivenRun(batch_groups=1, depth=0, max_staleness=9)
    for _ in range(3):
        run.step()
    run.recover(Version(0, 2))
    assert run.step() == Version(1, 3)
    run.admit()
    ticket = run.accounts.waiting()[0]
    run.start_all()
    run.finish(ticket, Version(1, 1))
    assert run.books.tally.dead_lineage == 1
    assert run.is_sound()


def test_a_second_rollback_can_pass_the_first():
    run = DrivenRun(depth=0, max_staleness=1)
    for _ in range(4):
        run.step()
    run.recover(Version(0, 2))
    for _ in range(2):
        run.step()
    assert run.books.version == Version(1, 4)
    assert run.recover(Version(0, 1)) == Version(2, 1)
    assert run.books.tally.consumed == 2
    assert run.is_sound()
    for _ in range(3):
        run.step()
    assert run.store.auditor.against(run.books) == []


def test_only_groups_that_a_step_consumed_are_restored():
    """The first attempt at step 0 was undone; a smaller second one left no time for the rest."""
    run = DrivenRun()
    run.admit()
    run.start_all()
    for n in range(3):
        run.finish(f"{n}-0/0.0")
    run.accounts.consume(run.choose())
    run.recover(FIRST_VERSION, alive=True)
    run.accounts.configure(settings(batch_groups=1, depth=0, max_staleness=0))
    assert list(run.books.groups) == ["0-0"]
    run.accounts.consume(run.choose())
    run.accounts.commit()
    run.recover(FIRST_VERSION, alive=True)
    assert list(run.books.groups) == ["0-0"]
    assert run.books.pending.keys() == {1, 2, 3}
    assert run.is_sound()


def test_a_version_of_another_run_is_rejected():
    run = DrivenRun()
    run.step()
    for foreign in (Version(0, 7), Version(3, 0), Version(0, 2)):
        with pytest.raises(LedgerError, match="does not descend from it"):
            run.recover(foreign)
    run.step()
    run.recover(FIRST_VERSION)
    with pytest.raises(LedgerError, match="or of an abandoned lineage"):
        run.recover(Version(0, 2))


CALM = Plan(
    settings=settings(batch_groups=3, depth=2, max_staleness=4, group_size=2),
    steps=8,
    durations="constant",
    step_seconds=0.7,
)


def test_kill_and_resume_gives_the_same_batches_as_no_kill():
    whole = Training(CALM).run()
    assert whole.batches == [(0, 1, 2), (3, 4, 5), *whole.batches[2:]]
    for write in range(1, whole.writes, 3):
        plan = dataclasses.replace(CALM, faults=Faults(crash_at=write))
        killed = Training(plan).run()
        assert killed.crashes == 1
        assert killed.batches == whole.batches, f"killed at write {write}"


def test_kill_and_resume_gives_the_same_sync_batches_for_any_durations():
    strict = settings(batch_groups=3, depth=0, max_staleness=0, group_size=2)
    plan = dataclasses.replace(CALM, settings=strict, durations="lognormal", checkpoint_every=3)
    whole = Training(plan).run()
    for write in range(1, whole.writes, 3):
        killed = Training(dataclasses.replace(plan, faults=Faults(crash_at=write, power=1))).run()
        assert [set(batch) for batch in killed.batches] == [set(batch) for batch in whole.batches]


CHANGES = {
    "B up": {"batch_groups": 5},
    "B down": {"batch_groups": 1},
    "depth up": {"depth": 4},
    "depth down": {"depth": 0},
    "bound up": {"max_staleness": 9},
    "bound down": {"depth": 0, "max_staleness": 0},
    "cap up": {"max_running": 500},
    "cap down": {"max_running": 2},
    "size up": {"group_size": 5},
    "size down": {"group_size": 1},
    "policy": {"group_policy": "min_graded"},
    "requeues": {"requeues": 0},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("durations", ["constant", "lognormal"])
def test_settings_may_change_at_a_resume(change: str, durations):
    usual = {"batch_groups": 3, "depth": 2, "max_staleness": 4, "group_size": 2, "max_running": 40}
    changed = settings(**{**usual, **CHANGES[change]})
    for write in range(1, 120, 7):
        faults = Faults(crash_at=write, crashes=9, adopted=0.5, new_settings=(changed,))
        plan = dataclasses.replace(
            CALM, settings=settings(**usual), durations=durations, faults=faults, seed=write
        )
        run = Training(plan)
        assert run.run().steps == 8
