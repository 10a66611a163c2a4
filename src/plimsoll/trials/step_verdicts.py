"""Verdict of a trial from the verdicts of its steps.

A single-step task has the verdict of its step. With several steps, one void step makes the
whole trial void: a mean over the remaining steps is not a reward.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from plimsoll.core.endings import Ending
from plimsoll.trials.verdicts import Graded, Verdict, Void

__all__ = ["combine_verdicts", "is_below_minimum"]


def is_below_minimum(verdict: Graded, min_reward: float | Mapping[str, float] | None) -> bool:
    """Whether a step did not reach the minimum reward for the next step."""
    if min_reward is None:
        return False
    if isinstance(min_reward, Mapping):
        return any(verdict.rewards.get(key, 0.0) < bound for key, bound in min_reward.items())
    return verdict.reward < min_reward


def combine_verdicts(
    verdicts: Sequence[tuple[str, Verdict]], strategy: Literal["mean", "final"], multi_step: bool
) -> Verdict:
    """Combine the verdicts of the steps that ran, in order."""
    graded: list[Graded] = []
    for name, verdict in verdicts:
        if isinstance(verdict, Void):
            reason = f"step {name}: {verdict.reason}" if multi_step else verdict.reason
            return replace(verdict, reason=reason)
        graded.append(verdict)
    if not multi_step or strategy == "final":
        return graded[-1]
    endings = [verdict.ending for verdict in graded]
    return Graded(
        reward=sum(verdict.reward for verdict in graded) / len(graded),
        ending=next((e for e in endings if e is not Ending.SUBMITTED), Ending.SUBMITTED),
        rewards=_mean_by_key(graded),
        evidence=tuple(note for verdict in graded for note in verdict.evidence),
    )


def _mean_by_key(graded: Sequence[Graded]) -> dict[str, float]:
    """Mean by key; a key that a step lacks counts as 0."""
    keys = dict.fromkeys(key for verdict in graded for key in verdict.rewards)
    return {key: sum(v.rewards.get(key, 0.0) for v in graded) / len(graded) for key in keys}
