"""An evaluation that can come to nothing stops; one that can come to something goes on."""

from plimsoll.core.endings import Ending
from plimsoll.runs.results import Row
from plimsoll.runs.stopping import Stopping
from plimsoll.trials.verdicts import Cause


def row(cause: Cause | None) -> Row:
    graded = cause is None
    return Row(
        task="t",
        attempt=1,
        verdict="graded" if graded else "void",
        reward=0.0 if graded else None,
        rewards={} if graded else None,
        ending=Ending.SUBMITTED,
        cause=cause,
        reason=None if graded else "because",
        seconds=0.1,
    )


def watched(*causes: Cause | None) -> str | None:
    stopping = Stopping()
    for cause in causes:
        stopping.watch(row(cause))
    return stopping.reason


def test_sixteen_trials_lost_to_the_infrastructure_stop_the_run():
    reason = watched(*[Cause.SANDBOX] * 15, Cause.POLICY)
    assert reason is not None
    assert "sandbox 15" in reason
    assert "policy 1" in reason
    assert watched(*[Cause.SANDBOX] * 15) is None


def test_one_graded_trial_is_reason_enough_to_go_on():
    assert watched(None, *[Cause.SANDBOX] * 40) is None
    assert watched(*[Cause.SANDBOX] * 5, None, *[Cause.SANDBOX] * 40) is None


def test_broken_tasks_do_not_stop_the_run():
    assert watched(*[Cause.GRADER] * 40) is None
    assert watched(*[Cause.TASK] * 40) is None


def test_a_bug_stops_the_run_at_once():
    reason = watched(None, None, Cause.BUG)
    assert reason is not None
    assert "t.1" in reason
