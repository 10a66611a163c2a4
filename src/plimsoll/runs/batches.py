"""Batches: the input of a trainer. A batch has groups; a group has the rollouts of one prompt.

A batch holds names, not data: the tokens of a rollout are read from its trajectory on request
and not cached.

Baseline and advantages of a group are computed over graded members only. A void member has no
reward and no advantage.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plimsoll.core.versions import Version
from plimsoll.runs.files.results import mean
from plimsoll.trajectories.samples import Sample
from plimsoll.trajectories.trajectory import Trajectory
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
"""Added to the standard deviation that advantages are divided by, so that noise is not
amplified."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Statistics of a group. Without a graded member, baseline and deviation are None."""

    graded: int
    baseline: float | None
    std: float | None
    """Population standard deviation, not a sample estimate."""
    zero_variance: bool
    """There are graded members, and all have the same reward: nothing can be learned."""


def group_statistics(rewards: Sequence[float | None]) -> GroupStatistics:
    """Statistics of a group's rewards. None stands for a void member."""
    graded = [reward for reward in rewards if reward is not None]
    if not graded:
        return GroupStatistics(0, None, None, zero_variance=False)
    baseline = math.fsum(graded) / len(graded)
    variance = math.fsum((reward - baseline) ** 2 for reward in graded) / len(graded)
    return GroupStatistics(
        len(graded), baseline, math.sqrt(variance), zero_variance=min(graded) == max(graded)
    )


def advantages(rewards: Sequence[float | None], *, by_std: bool) -> tuple[float | None, ...]:
    """Reward minus baseline of each member, optionally divided by the deviation. None if void."""
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
    """The trainable part of a rollout."""

    samples: tuple[Sample, ...] = ()
    left_out: tuple[str, ...] = ()
    """The reason for each answer that cannot be trained on: the server returned no token ids, or
    a number of them that differs from its count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One member of a group."""

    ticket: str
    task: str
    reward: float | None
    """None if void: it has no part in the baseline."""
    trajectory: str
    """An fsspec path; empty if the agent asked no policy."""
    head: Version | None
    """Tokens of weights older than these are not trained on."""
    oldest: Version | None
    newest: Version | None
    """The first and the last version that generated a token of the rollout."""
    withheld: bool
    """The reward shapes the baseline; no token is trained on."""
    seconds: float
    sandbox_seconds: float | None
    """Start time of the sandbox; None if unknown."""
    folder: Path
    trial: str = ""
    """The trial's id; empty if unknown."""

    @property
    def trained(self) -> bool:
        """True if the rollout's tokens are trained on."""
        return self.reward is not None and not self.withheld

    def read(self) -> Trajectory:
        """Read the whole trajectory."""
        return read_stored(self.trajectory, self.trial)

    def blob(self, address: str) -> bytes:
        """The content of a `blob:` address in the trajectory: an image too large for a line."""
        return read_blob(self.trajectory, address)

    def samples(self) -> Iterator[Sample]:
        """The samples to train on. Tokens of weights older than `head` are masked."""
        yield from self.trainable().samples

    def trainable(self) -> Trainable:
        """The samples to train on, and the reasons for omitted answers."""
        if not (self.trained and self.trajectory):
            return Trainable()
        recorded = self.read()
        return Trainable(
            tuple(_masked(sample, self.head) for sample in recorded.samples()),
            tuple(each.untrainable for each in recorded.exchanges if each.untrainable),
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
        """Reward minus baseline of each member; None if void."""
        return advantages(self.rewards, by_std=by_std)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The groups of one step, the oldest first."""

    step: int
    """Counted from 1: the number of the version that the step makes."""
    version: Version
    """The version that the step starts from."""
    groups: tuple[BatchGroup, ...]

    @property
    def reward(self) -> float | None:
        """The mean over graded members; None without any."""
        rewards = (reward for group in self.groups for reward in group.rewards)
        return mean(reward for reward in rewards if reward is not None)

    @property
    def age(self) -> int:
        """The age of the oldest trained token, in versions."""
        trained = (member for group in self.groups for member in group.members if member.trained)
        versions = [first for member in trained if (first := member.oldest or member.head)]
        return max((self.version.number - first.number for first in versions), default=0)

    @property
    def sandbox_seconds(self) -> float | None:
        """The median start time of the trials' sandboxes; None if unknown."""
        waits = (member.sandbox_seconds for group in self.groups for member in group.members)
        measured = [seconds for seconds in waits if seconds is not None]
        return round(statistics.median(measured), 4) if measured else None

    def samples(self) -> Iterator[tuple[Sample, float]]:
        """The samples to train on, each with the advantage of its rollout. Reads one rollout at
        a time."""
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
    """Mask the tokens that weights older than `head` generated."""
    if head is None or all(version is None or version >= head for version in sample.versions):
        return sample
    mask = bytearray(
        flag if version is not None and version >= head else 0
        for flag, version in zip(sample.mask, sample.versions, strict=True)
    )
    return replace(sample, mask=mask)
