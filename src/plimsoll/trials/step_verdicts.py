"""What the steps of a task come to together.

A task with one step has that step's verdict. With several, any step that could not be
graded makes the whole trial void: a mean over what happens to be there is no reward.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from plimsoll.core.endings import Ending
from plimsoll.trials.verdicts import Graded, Verdict, Void

__all__ = ["combine", "falls_short"]


def falls_short(verdict: Graded, least: float | Mapping[str, float] | None) -> bool:
    """Whether a step did not reach what the next one needs."""
    if least is None:
        return False
    if isinstance(least, Mapping):
        return any(verdict.rewards.get(key, 0.0) < bound for key, bound in least.items())
    return verdict.reward < least


def combine(
    verdicts: Sequence[tuple[str, Verdict]], strategy: Literal["mean", "final"], several: bool
) -> Verdict:
    """The trial's verdict from those of its steps, in order, as far as they ran."""
    graded: list[Graded] = []
    for name, verdict in verdicts:
        if isinstance(verdict, Void):
            reason = f"step {name}: {verdict.reason}" if several else verdict.reason
            return replace(verdict, reason=reason)
        graded.append(verdict)
    if not several or strategy == "final":
        return graded[-1]
    endings = [verdict.ending for verdict in graded]
    return Graded(
        reward=sum(verdict.reward for verdict in graded) / len(graded),
        ending=next((e for e in endings if e is not Ending.SUBMITTED), Ending.SUBMITTED),
        rewards=_mean_by_key(graded),
        evidence=tuple(note for verdict in graded for note in verdict.evidence),
    )


def _mean_by_key(graded: Sequence[Graded]) -> dict[str, float]:
    """A number that a step did not give counts as 0 there."""
    keys = dict.fromkeys(key for verdict in graded for key in verdict.rewards)
    return {key: sum(v.rewards.get(key, 0.0) for v in graded) / len(graded) for key in keys}
