"""Figures: a mean covers graded trials only, and there is none if nothing is graded."""

import msgspec
import pytest

from plimsoll.config.run import default_concurrency
from plimsoll.core.endings import Ending
from plimsoll.runs.evaluation.eval_run import exit_code
from plimsoll.runs.files.results import Row, Tally, row_of
from plimsoll.trials.policy_usage import PolicyUsage
from plimsoll.trials.verdicts import Cause, Evidence, Graded, Verdict, Void
from plimsoll.workers.messages import Order, Result


def row(task: str, attempt: int, verdict: Verdict) -> Row:
    order = Order(ticket="g/0.0", task=task, name=task, attempt=attempt, folder="")
    return row_of(order, Result(ticket="g/0.0", verdict=verdict, seconds=1.0), folder="")


def graded(task: str, attempt: int, reward: float) -> Row:
    verdict = Graded(reward, Ending.SUBMITTED, {"reward": reward})
    return row(task, attempt, verdict)


def void(task: str, attempt: int, cause: Cause = Cause.GRADER) -> Row:
    return row(task, attempt, Void(cause, "it broke"))


def tally(*rows: Row) -> Tally:
    made = Tally()
    for row in rows:
        made.add(row)
    return made


def test_a_mean_leaves_void_trials_out():
    of_both = tally(graded("a", 1, 1.0), graded("a", 2, 0.0), void("a", 3), void("b", 1))
    assert of_both.mean_reward == 0.5
    assert (of_both.trials, of_both.graded) == (4, 2)


def test_an_honest_zero_counts_in_the_mean():
    assert tally(graded("a", 1, 0.0)).mean_reward == 0.0


def test_no_graded_trial_gives_no_mean():
    summary = tally(void("a", 1), void("b", 1)).summary(tasks=2, seconds=6.0)
    assert summary.mean_reward is None
    assert b'"mean_reward":null' in msgspec.json.encode(summary)


def test_a_void_row_carries_no_reward_and_a_graded_one_no_cause():
    bad, good = void("a", 1), graded("a", 2, 0.5)
    assert (bad.verdict, bad.reward, bad.rewards) == ("void", None, None)
    assert (bad.cause, bad.reason) == (Cause.GRADER, "it broke")
    assert (good.verdict, good.cause, good.reason) == ("graded", None, None)
    assert (good.reward, good.rewards, good.ending) == (0.5, {"reward": 0.5}, "submitted")


def test_a_row_has_all_figures_of_its_trial():
    order = Order(
        ticket="g/0.1",
        task="/tasks/x",
        name="set/x",
        attempt=3,
        folder="/run/trials/x.3",
        agent="nop",
    )
    result = Result(
        ticket="g/0.1",
        verdict=Graded(0.5, Ending.BUDGET, {"reward": 0.5, "style": 1.0}),
        seconds=1.23456,
        sandbox_seconds=0.123456,
        paused_seconds=2.34567,
        trial="beef",
        trajectory="trajectories/g_0.1.jsonl.zst",
        usage=PolicyUsage(turns=2, prompt_tokens=30, answer_tokens=10),
    )
    assert row_of(order, result, folder="trials/x.3~2") == Row(
        task="set/x",
        attempt=3,
        verdict="graded",
        reward=0.5,
        rewards={"reward": 0.5, "style": 1.0},
        ending=Ending.BUDGET,
        cause=None,
        reason=None,
        seconds=1.235,
        agent="nop",
        ticket="g/0.1",
        trial="beef",
        folder="trials/x.3~2",
        trajectory="trajectories/g_0.1.jsonl.zst",
        turns=2,
        prompt_tokens=30,
        answer_tokens=10,
        sandbox_seconds=0.1235,
        paused_seconds=2.346,
    )


def test_a_void_row_keeps_the_ending_of_the_agent():
    verdict = Void(Cause.GRADER, "no file", (Evidence("x"),), Ending.BUDGET)
    assert row("a", 1, verdict).ending is Ending.BUDGET


def test_void_is_counted_by_cause():
    rows = (void("a", 1, Cause.TASK), void("a", 2), void("b", 1), graded("b", 2, 1.0))
    assert tally(*rows).void == {"grader": 2, "task": 1}
    assert tally(*rows).by_task()["b"].void == {"grader": 1}


def test_results_are_ordered_by_task_and_attempt():
    summary = tally(void("b", 1), graded("a", 10, 1.0), graded("a", 2, 1.0)).summary(
        tasks=2, seconds=90.0
    )
    assert [(row.task, row.attempt) for row in summary.results] == [("a", 2), ("a", 10), ("b", 1)]
    assert summary.trials_per_minute == 2.0


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ((graded("a", 1, 0.0),), 0),
        ((graded("a", 1, 1.0), void("a", 2)), 3),
        ((void("a", 1, Cause.BUG),), 3),
    ],
)
def test_any_void_trial_changes_the_exit_code(rows: tuple[Row, ...], code: int):
    assert exit_code(tally(*rows).summary(tasks=1, seconds=1.0)) == code


def test_the_default_concurrency_is_at_least_two():
    assert default_concurrency() >= 2
