"""Rows of trials that never ran, for code that only reads rows."""

from plimsoll.core.endings import Ending
from plimsoll.runs.files.results import Row
from plimsoll.trials.verdicts import Cause

__all__ = ["graded", "void"]


def graded(reward: float, task: str = "t", attempt: int = 1) -> Row:
    return Row(
        task=task,
        attempt=attempt,
        verdict="graded",
        reward=reward,
        rewards={"reward": reward},
        ending=Ending.SUBMITTED,
        cause=None,
        reason=None,
        seconds=0.1,
    )


def void(
    cause: Cause = Cause.GRADER, reason: str = "it broke", task: str = "t", attempt: int = 1
) -> Row:
    return Row(
        task=task,
        attempt=attempt,
        verdict="void",
        reward=None,
        rewards=None,
        ending=None,
        cause=cause,
        reason=reason,
        seconds=0.1,
    )
