"""What the learner is given of a batch: one item for each sample."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.runs.batches import Batch

__all__ = ["Item", "items_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Item:
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


def items_of(batch: Batch, *, normalize: bool) -> Iterator[Item]:
    """The samples of graded members that are not withheld. Read one after another."""
    for group in batch.groups:
        values = group.advantages(by_std=normalize)
        for member, value in zip(group.members, values, strict=True):
            if value is None or member.reward is None:
                continue
            for sample in member.samples():
                if any(sample.mask):
                    yield Item(
                        ids=sample.ids,
                        mask=sample.mask,
                        logprobs=sample.logprobs,
                        advantage=value,
                        reward=member.reward,
                        group=group.id,
                        ticket=member.ticket,
                    )
