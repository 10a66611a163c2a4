"""What a group of attempts at one task says: baseline and advantages, of graded members only.

A void member has no reward, so it has no advantage, and the baseline does not know of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["GroupStatistics", "advantages", "group_statistics"]

_LEAST_STD = 1e-6
"""Added to the deviation that advantages are divided by: noise in a reward is not blown up."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """A group in figures. Without a graded member there is neither baseline nor deviation."""

    graded: int
    baseline: float | None
    std: float | None
    """Of the group itself, not an estimate for a larger one."""
    zero_variance: bool
    """There are graded members, and all have the same reward: there is nothing to learn."""


def group_statistics(rewards: Sequence[float | None]) -> GroupStatistics:
    """The figures of a group's rewards. None stands for a void member."""
    graded = [reward for reward in rewards if reward is not None]
    if not graded:
        return GroupStatistics(0, None, None, zero_variance=False)
    baseline = math.fsum(graded) / len(graded)
    variance = math.fsum((reward - baseline) ** 2 for reward in graded) / len(graded)
    return GroupStatistics(
        len(graded), baseline, math.sqrt(variance), zero_variance=min(graded) == max(graded)
    )


def advantages(rewards: Sequence[float | None], *, by_std: bool) -> tuple[float | None, ...]:
    """Each member's reward above the baseline, on request in deviations. A void one has none."""
    group = group_statistics(rewards)
    if group.baseline is None or group.std is None:
        return (None,) * len(rewards)
    if group.zero_variance:
        return tuple(None if reward is None else 0.0 for reward in rewards)
    unit = group.std + _LEAST_STD if by_std else 1.0
    baseline = group.baseline
    return tuple(None if reward is None else (reward - baseline) / unit for reward in rewards)
