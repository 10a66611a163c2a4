"""Training samples: the samples of a batch with advantages, as the learner gets them."""

from array import array
from collections import Counter
from dataclasses import dataclass, field

from plimsoll.core.errors import TrajectoryGone
from plimsoll.runs.batches import Batch, BatchGroup

__all__ = ["BatchSamples", "TrainingSample", "read_samples"]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """A sample with its advantage and reward. Every list has one entry a token."""

    ids: "array[int]"
    mask: bytearray
    """1 for trained tokens."""
    logprobs: "array[float]"
    """Log probabilities under the weights that generated the tokens; 0 where the mask is 0."""
    advantage: float
    """The advantage of its rollout over its group; 0 if all members have the same reward."""
    reward: float
    group: str
    ticket: str


@dataclass(slots=True, eq=False)
class BatchSamples:
    """The samples read from a batch."""

    samples: list[TrainingSample] = field(default_factory=list[TrainingSample])
    gone: dict[str, str] = field(default_factory=dict[str, str])
    """Groups with a missing or damaged trajectory, each with the reason."""
    left_out: "Counter[str]" = field(default_factory=Counter[str])
    """Reasons why answers cannot be trained on, with their counts."""

    @property
    def is_untrainable(self) -> bool:
        """Whether the policy answered, but no token can be trained on."""
        return not self.samples and bool(self.left_out)


def read_samples(batch: Batch, *, normalize: bool) -> BatchSamples:
    """Read the samples of graded members that are not withheld, one trajectory at a time."""
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
        read.samples += [
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
