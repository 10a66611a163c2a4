"""What the learner is given of a batch: one item for each sample."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.core.errors import TrajectoryGone
from plimsoll.runs.batches import Batch, BatchGroup

__all__ = ["Item", "read_items"]


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


def read_items(batch: Batch, *, normalize: bool) -> tuple[list[Item], dict[str, str]]:
    """All items, and the groups of which a trajectory is gone, each with what is wrong."""
    items: list[Item] = []
    gone: dict[str, str] = {}
    for group in batch.groups:
        try:
            items.extend(_items_of(group, normalize))
        except TrajectoryGone as error:
            gone[group.id] = str(error)
    return items, gone


def _items_of(group: BatchGroup, normalize: bool) -> Iterator[Item]:
    """The samples of graded members that are not withheld. Read one after another."""
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
