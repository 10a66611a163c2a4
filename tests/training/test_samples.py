"""Samples of a batch: graded members that are not withheld, with advantages over their groups."""

from array import array
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from plimsoll.core.versions import Version
from plimsoll.runs.batches import Batch, BatchGroup, Rollout, Trainable
from plimsoll.training.samples import read_samples
from plimsoll.trajectories.samples import Sample

NOW = Version(0, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutInMemory(Rollout):
    """A rollout with its samples in memory instead of a trajectory file."""

    masks: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def trainable(self):
        if not self.trained:
            return Trainable()
        return Trainable(tuple(map(sample, self.masks)), self.left_out)


def sample(mask: str) -> Sample:
    size = len(mask)
    return Sample(
        branch="start",
        exchanges=(0,),
        trained=(0,),
        roles=["assistant"] * size,
        ids=array("i", range(size)),
        mask=bytearray(map(int, mask)),
        logprobs=array("f", [-1.0] * size),
        versions=[NOW] * size,
    )


def member(
    ticket: str, reward: float | None, *masks: str, withheld: bool = False
) -> RolloutInMemory:
    return RolloutInMemory(
        ticket=ticket,
        task="t",
        reward=reward,
        trajectory="somewhere",
        head=NOW,
        oldest=NOW,
        newest=NOW,
        withheld=withheld,
        sandbox_seconds=None,
        seconds=1.0,
        folder=Path(),
        masks=masks or ("01",),
    )


def untrainable(ticket: str, reward: float, *reasons: str) -> RolloutInMemory:
    """A graded member without a trainable token, for these reasons."""
    return replace(member(ticket, reward), masks=(), left_out=reasons)


def batch(**groups: list[RolloutInMemory]) -> Batch:
    made = (
        BatchGroup(id=name, task="t", prompt=0, members=tuple(members))
        for name, members in groups.items()
    )
    return Batch(step=6, version=NOW, groups=tuple(made))


def test_advantages_are_computed_over_the_graded_members_of_a_group():
    given = batch(
        a=[member("a.0", 1.0), member("a.1", 0.0), member("a.2", None), member("a.3", 0.5)],
        b=[member("b.0", 3.0), member("b.1", 1.0)],
    )
    found = {item.ticket: item.advantage for item in read_samples(given, normalize=False).samples}
    assert found == {"a.0": 0.5, "a.1": -0.5, "a.3": 0.0, "b.0": 1.0, "b.1": -1.0}
    # Divided by the standard deviation: √(1/6) of the first group, 1 of the other.
    found = {item.ticket: item.advantage for item in read_samples(given, normalize=True).samples}
    assert found["a.0"] == pytest.approx(0.5 * 6**0.5, rel=1e-4)
    assert found["b.1"] == pytest.approx(-1, rel=1e-4)


def test_a_withheld_member_shapes_the_baseline_and_is_not_trained_on():
    given = batch(a=[member("a.0", 1.0), member("a.1", 0.0, withheld=True)])
    (item,) = read_samples(given, normalize=False).samples
    assert (item.ticket, item.advantage, item.group, item.reward) == ("a.0", 0.5, "a", 1.0)


def test_each_branch_with_trainable_tokens_is_one_item():
    given = batch(a=[member("a.0", 1.0, "011", "000", "001"), member("a.1", 0.0, "00")])
    found = read_samples(given, normalize=False).samples
    assert [(item.ticket, bytes(item.mask)) for item in found] == [
        ("a.0", b"\0\1\1"),
        ("a.0", b"\0\0\1"),
    ]


def test_untrainable_answers_are_counted_by_reason():
    some = [untrainable("a.0", 1.0, "no ids", "no ids"), untrainable("a.1", 0.0, "no logprobs")]
    found = read_samples(batch(a=some), normalize=False)
    assert (found.samples, found.left_out) == ([], {"no ids": 2, "no logprobs": 1})
    assert found.is_untrainable
    # One trainable member is enough, and a batch without any answer is not untrainable.
    assert not read_samples(batch(a=[*some, member("a.2", 0.5)]), normalize=False).is_untrainable
    assert not read_samples(batch(a=[untrainable("a.0", 1.0)]), normalize=False).is_untrainable
    # Void and withheld members do not count.
    void = replace(some[0], reward=None)
    assert not read_samples(
        batch(a=[void, replace(some[1], withheld=True)]), normalize=False
    ).is_untrainable
