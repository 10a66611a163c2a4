"""The audit of a ledger: it names lost prompts, and excuses only excluded tasks."""

from driven_run import ORDER, DrivenRun

from plimsoll.core.endings import Ending
from plimsoll.ledger.audit import Auditor
from plimsoll.ledger.events import Finished, Skipped
from plimsoll.trials.verdicts import Cause, Void


def with_excluded_task() -> DrivenRun:
    """A run in which all rollouts of prompt 0 are void, and its task is excluded."""
    run = DrivenRun(group_policy="void", requeues=0)
    run.admit()
    run.void("0-0/0.0")
    assert list(run.books.quarantined) == [ORDER.epoch(0)[0]]
    assert run.store.auditor.against(run.books) == []
    return run


def test_the_audit_finds_a_lost_prompt_beside_an_excluded_task():
    run = with_excluded_task()
    run.accounts.distrust(["2-0/0.0"], Void(Cause.SANDBOX, "a canary failed"))
    assert run.store.auditor.against(run.books) == []
    del run.books.pending[2]
    assert run.store.auditor.against(run.books) == ["prompts 2 are lost"]


def test_the_audit_finds_two_tickets_graded_by_one_trial():
    auditor = Auditor()
    for ticket in ("0-0/0.0", "0-0/1.0"):
        auditor.take(
            Finished(ticket=ticket, reward=1.0, ending=Ending.SUBMITTED, seconds=1.0, trial="x")
        )
    assert auditor.broken == ["0-0/0.0 and 0-0/1.0 were graded by one trial"]


def test_the_audit_accepts_prompts_skipped_after_their_task_was_excluded():
    run = with_excluded_task()
    while run.books.tally.quarantined < 3:
        run.step()
    assert run.store.auditor.against(run.books) == []
    run.books.quarantined.clear()
    turns = [50 * epoch + ORDER.epoch(epoch).index(ORDER.epoch(0)[0]) for epoch in range(3)]
    lost = ", ".join(map(str, turns))
    assert run.store.auditor.against(run.books) == [f"prompts {lost} are lost"]


def test_a_skipped_prompt_of_an_included_task_does_not_fit():
    run = with_excluded_task()
    at = run.books.next_prompt
    assert not run.books.apply(Skipped(prompt=at, task="task-x"))
    assert run.books.next_prompt == at
