"""Items as tensors. Only trained tokens, and what stands before them, are in them at all."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from plimsoll.core.errors import TrainingError
from plimsoll.training.samples import TrainingSample

__all__ = ["Inputs", "MicroBatch", "Row", "check_samples", "make_inputs"]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sample: what the model reads of it, and which tokens it is asked for."""

    ids: Tensor
    """Without the last trained token and all that follows: nothing is predicted from those."""
    positions: Tensor
    """After these the trained tokens come."""
    targets: Tensor
    start: int
    """Where its trained tokens begin among those of all rows."""
    advantage: float
    reward: float
    rollout: str
    """The ticket of its rollout, which has several rows where its trajectory has branches."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Rows side by side, and their trained tokens one after another."""

    ids: Tensor
    """rows × longest; what is beyond a row's end is read by nothing before it."""
    index: Tensor
    """For each trained token, the place in flattened `ids` after which it comes."""
    targets: Tensor
    rows: Tensor
    """For each trained token, its row."""
    sizes: Tensor
    """For each row, how many trained tokens it has."""
    rollout_sizes: Tensor
    """For each row, how many trained tokens its rollout has in all its rows."""
    places: Tensor
    """For each trained token, its place among those of the whole batch."""


@dataclass(eq=False)
class Inputs:
    """All rows of a batch."""

    rows: list[Row]
    behaviour: Tensor
    """The log probability of each trained token under the weights that generated it."""
    device: torch.device

    @cached_property
    def tokens(self) -> int:
        """How many tokens are trained on."""
        return len(self.behaviour)

    @cached_property
    def advantages(self) -> Tensor:
        """Of each trained token: that of its row."""
        spread = [torch.full((len(row.targets),), row.advantage) for row in self.rows]
        return torch.cat(spread).to(self.device)

    @cached_property
    def rollout_sizes(self) -> Counter[str]:
        """How many trained tokens each rollout has."""
        sizes = Counter[str]()
        for row in self.rows:
            sizes[row.rollout] += len(row.targets)
        return sizes

    def lengths(self, indexes: Sequence[int]) -> list[int]:
        return [len(self.rows[index].ids) for index in indexes]

    def places(self, indexes: Sequence[int]) -> list[range]:
        """Where the trained tokens of these rows are among all."""
        rows = (self.rows[index] for index in indexes)
        return [range(row.start, row.start + len(row.targets)) for row in rows]

    def micro_batch(self, indexes: Sequence[int]) -> MicroBatch:
        """Of no rows there is one as well: a token that nothing is asked about."""
        rows = [self.rows[index] for index in indexes]
        width = max((len(row.ids) for row in rows), default=1)
        ids = torch.zeros((max(len(rows), 1), width), dtype=torch.int64)
        for at, row in enumerate(rows):
            ids[at, : len(row.ids)] = row.ids
        sizes = torch.tensor([len(row.targets) for row in rows], dtype=torch.int64)
        nothing = torch.zeros(0, dtype=torch.int64)
        index = [at * width + row.positions for at, row in enumerate(rows)]
        places = [torch.arange(each.start, each.stop) for each in self.places(indexes)]
        return MicroBatch(
            ids=ids.to(self.device),
            index=torch.cat([nothing, *index]).to(self.device),
            targets=torch.cat([nothing, *(row.targets for row in rows)]).to(self.device),
            rows=torch.arange(len(rows)).repeat_interleave(sizes).to(self.device),
            sizes=sizes.to(self.device),
            rollout_sizes=torch.tensor(
                [self.rollout_sizes[row.rollout] for row in rows], dtype=torch.int64
            ).to(self.device),
            places=torch.cat([nothing, *places]).to(self.device),
        )


def make_inputs(items: Sequence[TrainingSample], device: torch.device) -> Inputs:
    """Of items that are checked."""
    rows: list[Row] = []
    behaviour: list[Tensor] = [torch.zeros(0)]
    start = 0
    for item in items:
        ids = torch.tensor(item.ids, dtype=torch.int64)
        # The first token comes after nothing: no model gives it a probability.
        positions = torch.tensor(item.mask[1:], dtype=torch.bool).nonzero().flatten()
        if len(positions) == 0:
            continue
        targets = positions + 1
        rows.append(
            Row(
                ids=ids[: int(targets[-1])],
                positions=positions,
                targets=ids[targets],
                start=start,
                advantage=item.advantage,
                reward=item.reward,
                rollout=item.ticket,
            )
        )
        start += len(targets)
        behaviour.append(torch.tensor(item.logprobs, dtype=torch.float32)[targets])
    return Inputs(rows=rows, behaviour=torch.cat(behaviour).to(device), device=device)


def check_samples(items: Sequence[TrainingSample], vocabulary: int) -> None:
    """Raises where one cannot be what a model of so many token ids is trained on."""
    for item in items:
        _check(item, vocabulary)


def _check(item: TrainingSample, vocabulary: int) -> None:
    where = f"a sample of {item.ticket}"
    if not len(item.ids) == len(item.mask) == len(item.logprobs):
        raise TrainingError(
            f"{where} has {len(item.ids)} token ids, {len(item.mask)} mask entries and "
            f"{len(item.logprobs)} log probabilities: its trajectory is damaged"
        )
    if len(item.ids) and not 0 <= min(item.ids) <= max(item.ids) < vocabulary:
        wrong = min(item.ids) if min(item.ids) < 0 else max(item.ids)
        raise TrainingError(
            f"{where} has token id {wrong}, but the model that is trained knows ids 0 to "
            f"{vocabulary - 1}: the server that generated it has another tokenizer. "
            "Serve the model that [training] model names, in a new run: this one holds rollouts "
            "of the other"
        )
    if not (math.isfinite(item.advantage) and math.isfinite(item.reward)):
        raise TrainingError(
            f"{where} has reward {item.reward} and advantage {item.advantage}: "
            "only finite numbers can be trained on"
        )
