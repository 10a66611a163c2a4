"""What a group of attempts at one task says: baseline and advantages, of graded members only.

A void member has no reward, so it has no advantage, and the baseline does not know of it.

What a trainer is given: a batch of groups, each the rollouts of one prompt.

A batch holds names, not data: the tokens of a rollout are read from its trajectory when they
are asked for, and kept by nobody.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plimsoll.core.versions import Version
from plimsoll.runs.results import mean
from plimsoll.trajectories.samples import Sample
from plimsoll.trajectories.trajectory_file import Trajectory
from plimsoll.workers.worker.trajectory_store import read_blob, read_stored

__all__ = [
    "Batch",
    "BatchGroup",
    "GroupStatistics",
    "Rollout",
    "Trainable",
    "advantages",
    "group_statistics",
]

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


@dataclass(frozen=True, slots=True)
class Trainable:
    """What can be trained on of a rollout."""

    samples: tuple[Sample, ...] = ()
    left_out: tuple[str, ...] = ()
    """Why answers of it cannot be trained on, for each that cannot: a server that returned no
    token ids, or others than it counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One member of a group."""

    ticket: str
    task: str
    reward: float | None
    """None where it is void: it has no part in the baseline."""
    trajectory: str
    """Where what was said is, as an fsspec path; empty where no policy was asked."""
    head: Version | None
    """Tokens of older weights than these are not trained on."""
    oldest: Version | None
    newest: Version | None
    """The first and the last version that generated a token of it."""
    withheld: bool
    """Its reward shapes the baseline, and none of its tokens is trained on."""
    seconds: float
    sandbox_seconds: float | None
    """How long its sandbox took to start; None where that is not known."""
    folder: Path
    trial: str = ""
    """The id of its trial; empty where that is not known."""

    @property
    def trained(self) -> bool:
        """Whether its tokens are trained on."""
        return self.reward is not None and not self.withheld

    def read(self) -> Trajectory:
        """All that was said in it."""
        return read_stored(self.trajectory, self.trial)

    def blob(self, address: str) -> bytes:
        """The content of a `blob:` address in it: an image that was too large for a line."""
        return read_blob(self.trajectory, address)

    def samples(self) -> Iterator[Sample]:
        """What is trained on of it; what older weights than `head` generated is masked."""
        yield from self.trainable().samples

    def trainable(self) -> Trainable:
        """The same, with what had to be left out of it."""
        if not (self.trained and self.trajectory):
            return Trainable()
        said = self.read()
        return Trainable(
            tuple(_masked(sample, self.head) for sample in said.branches()),
            tuple(each.untrainable for each in said.exchanges if each.untrainable),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGroup:
    """The rollouts of one prompt."""

    id: str
    task: str
    prompt: int
    members: tuple[Rollout, ...]

    @property
    def rewards(self) -> tuple[float | None, ...]:
        return tuple(member.reward for member in self.members)

    def advantages(self, *, by_std: bool = False) -> tuple[float | None, ...]:
        """Each member's reward above the baseline; a void one has none."""
        return advantages(self.rewards, by_std=by_std)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The groups of one step, the oldest first."""

    step: int
    """Counted from 1: the number of the version that it makes."""
    version: Version
    """The version that the step starts from."""
    groups: tuple[BatchGroup, ...]

    @property
    def reward(self) -> float | None:
        """The mean over graded members; None of nothing."""
        rewards = (reward for group in self.groups for reward in group.rewards)
        return mean(reward for reward in rewards if reward is not None)

    @property
    def age(self) -> int:
        """How many versions old the oldest token is that it trains on."""
        trained = (member for group in self.groups for member in group.members if member.trained)
        versions = [first for member in trained if (first := member.oldest or member.head)]
        return max((self.version.number - first.number for first in versions), default=0)

    @property
    def sandbox_seconds(self) -> float | None:
        """The median time that its trials waited for their sandbox; None where none is known."""
        waits = (member.sandbox_seconds for group in self.groups for member in group.members)
        known = [seconds for seconds in waits if seconds is not None]
        return round(statistics.median(known), 4) if known else None

    def samples(self) -> Iterator[tuple[Sample, float]]:
        """What is trained on, with the advantage of its rollout; read one after another."""
        for group in self.groups:
            yield from _with_advantage(group.members, group.advantages())


def _with_advantage(
    members: Sequence[Rollout], values: Sequence[float | None]
) -> Iterator[tuple[Sample, float]]:
    for member, value in zip(members, values, strict=True):
        if value is not None:
            for sample in member.samples():
                yield sample, value


def _masked(sample: Sample, head: Version | None) -> Sample:
    """Without what older weights generated."""
    if head is None or all(version is None or version >= head for version in sample.versions):
        return sample
    mask = bytearray(
        wanted if version is not None and version >= head else 0
        for wanted, version in zip(sample.mask, sample.versions, strict=True)
    )
    return replace(sample, mask=mask)
