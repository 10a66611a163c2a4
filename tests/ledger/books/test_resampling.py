"""Seeds of retries: new ones, unless the run was stopped or the policy had not answered."""

import pytest
from driven_run import DrivenRun

from plimsoll.core.versions import FIRST_VERSION
from plimsoll.ledger.journal.snapshot import dump, load
from plimsoll.trials.verdicts import CAUSES, Cause, Void

STOPPED = Void(Cause.CANCELLED, "the run is being stopped")
LOST = Void(Cause.LOST, "its worker is gone")


def seed(run: DrivenRun, group: str = "0-0") -> str:
    return run.books.groups[group].seed_name(0)


def started_run(**changes: object) -> DrivenRun:
    run = DrivenRun(**changes)
    run.admit()
    run.start_all()
    return run


def check_kept(run: DrivenRun) -> None:
    """Check that the journal and a snapshot of the books give the same seeds."""
    names = {name: group.seed_name(0) for name, group in run.books.groups.items()}
    copy = load(dump(run.books))
    run.reopen()
    for books in (copy, run.books):
        assert {name: group.seed_name(0) for name, group in books.groups.items()} == names
    assert run.is_sound()


@pytest.mark.parametrize("cause", [cause for cause in Cause if CAUSES[cause].retries])
def test_a_retry_has_other_seeds(cause: Cause):
    run = started_run(group_size=2)
    before, neighbour = seed(run), run.books.groups["0-0"].seed_name(1)
    run.void("0-0/0.0", cause)
    assert seed(run) != before
    assert run.books.groups["0-0"].seed_name(1) == neighbour
    check_kept(run)


def test_a_retry_of_a_rollout_lost_before_an_answer_has_the_same_seeds():
    run = started_run()
    before = seed(run)
    run.accounts.void("0-0/0.0", LOST, has_answered=False)
    assert seed(run) == before
    run.accounts.void("0-0/0.1", LOST, has_answered=True)
    assert seed(run) != before
    check_kept(run)


def test_a_retry_after_a_stop_or_restart_has_the_same_seeds():
    run = started_run()
    before = seed(run)
    run.accounts.void("0-0/0.0", STOPPED, again=True)
    assert seed(run) == before
    run.start_all()
    run.reopen()
    run.recover(run.books.version)
    assert run.books.groups["0-0"].members[0].attempt == 2
    assert seed(run) == before
    check_kept(run)


def test_a_requeued_group_has_other_seeds_than_all_earlier_tries():
    run = started_run()
    seen = [seed(run)]
    run.void("0-0/0.0", Cause.SANDBOX)
    seen.append(seed(run))
    run.accounts.distrust(["0-0/0.1"], Void(Cause.GRADER, "the canary failed"))
    run.admit()
    seen.append(seed(run, "0-1"))
    run.start_all()
    run.void("0-1/0.0", Cause.SANDBOX)
    seen.append(seed(run, "0-1"))
    assert len(set(seen)) == 4
    check_kept(run)


def test_a_group_of_an_abandoned_lineage_is_repeated_with_the_same_seeds():
    run = DrivenRun(depth=0, max_staleness=0)
    run.step()
    run.admit()
    run.start_all()
    (group, *_) = run.books.groups.values()
    before, prompt = group.seed_name(0), group.prompt
    run.reopen()
    run.recover(FIRST_VERSION)
    assert group.id not in run.books.groups
    run.step()
    run.admit()
    again = [one for one in run.books.groups.values() if one.prompt == prompt]
    assert [one.seed_name(0) for one in again] == [before]
    assert run.is_sound()
