"""What the learner is given of a batch: one item for each sample."""

from array import array
from collections import Counter
from dataclasses import dataclass, field

from plimsoll.core.errors import TrajectoryGone
from plimsoll.runs.batches import Batch, BatchGroup

__all__ = ["BatchSamples", "TrainingSample", "read_samples"]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """A sample with what it was worth. Every list has an entry for each token."""

    ids: "array[int]"
    mask: bytearray
    """1 for the tokens that are trained on."""
    logprobs: "array[float]"
    """Of the weights that generated them; 0 where the mask is 0."""
    advantage: float
    """Of its rollout above its group; 0 where all members were worth the same."""
    reward: float
    group: str
    ticket: str


@dataclass(slots=True, eq=False)
class BatchSamples:
    """All that was read of a batch."""

    items: list[TrainingSample] = field(default_factory=list[TrainingSample])
    gone: dict[str, str] = field(default_factory=dict[str, str])
    """The groups of which a trajectory is gone, each with what is wrong."""
    left_out: "Counter[str]" = field(default_factory=Counter[str])
    """Why answers cannot be trained on, with how many."""

    @property
    def is_mute(self) -> bool:
        """Whether the policy answered, and not a token of it can be trained on."""
        return not self.items and bool(self.left_out)


def read_samples(batch: Batch, *, normalize: bool) -> BatchSamples:
    """The samples of graded members that are not withheld. Read one after another."""
    read = BatchSamples()
    for group in batch.groups:
        try:
            _read_group(group, normalize, read)
        except TrajectoryGone as error:
            read.gone[group.id] = str(error)
    return read


def _read_group(group: BatchGroup, normalize: bool, read: BatchSamples) -> None:
    values = group.advantages(by_std=normalize)
    for member, value in zip(group.members, values, strict=True):
        if value is None or member.reward is None:
            continue
        found = member.trainable()
        read.left_out.update(found.left_out)
        read.items += [
            TrainingSample(
                ids=sample.ids,
                mask=sample.mask,
                logprobs=sample.logprobs,
                advantage=value,
                reward=member.reward,
                group=group.id,
                ticket=member.ticket,
            )
            for sample in found.samples
            if any(sample.mask)
        ]
