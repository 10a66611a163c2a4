"""Training samples as tensors, cut after their last trained token."""

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
    """One sample: the input tokens of the model and the trained tokens."""

    ids: Tensor
    """The tokens before the last trained one: nothing is predicted from later tokens."""
    positions: Tensor
    """The positions that predict a trained token."""
    targets: Tensor
    """The trained tokens."""
    start: int
    """The index of its first trained token among those of all rows."""
    advantage: float
    reward: float
    rollout: str
    """The ticket of its rollout. A trajectory with branches has several rows."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Padded rows, and their trained tokens concatenated."""

    ids: Tensor
    """rows × longest. Padding is on the right, where causal attention never looks."""
    index: Tensor
    """The position in flattened `ids` that predicts each trained token."""
    targets: Tensor
    rows: Tensor
    """The row of each trained token."""
    sizes: Tensor
    """The number of trained tokens in each row."""
    rollout_sizes: Tensor
    """For each row, the number of trained tokens in all rows of its rollout."""
    offsets: Tensor
    """The index of each trained token among those of the whole batch."""


@dataclass(eq=False)
class Inputs:
    """All rows of a batch."""

    rows: list[Row]
    behaviour: Tensor
    """The log probability of each trained token under the weights that generated it (the behaviour
    policy)."""
    device: torch.device

    @cached_property
    def tokens(self) -> int:
        """The number of trained tokens."""
        return len(self.behaviour)

    @cached_property
    def advantages(self) -> Tensor:
        """The advantage of each trained token: that of its row."""
        spread = [torch.full((len(row.targets),), row.advantage) for row in self.rows]
        return torch.cat(spread).to(self.device)

    @cached_property
    def rollout_sizes(self) -> Counter[str]:
        """The number of trained tokens of each rollout."""
        sizes = Counter[str]()
        for row in self.rows:
            sizes[row.rollout] += len(row.targets)
        return sizes

    def lengths(self, indexes: Sequence[int]) -> list[int]:
        return [len(self.rows[index].ids) for index in indexes]

    def offsets(self, indexes: Sequence[int]) -> list[range]:
        """The indexes of the trained tokens of these rows among all."""
        rows = (self.rows[index] for index in indexes)
        return [range(row.start, row.start + len(row.targets)) for row in rows]

    def micro_batch(self, indexes: Sequence[int]) -> MicroBatch:
        """The rows at `indexes`. Without rows: one input token and no trained one, so that every
        rank makes a pass."""
        rows = [self.rows[index] for index in indexes]
        width = max((len(row.ids) for row in rows), default=1)
        ids = torch.zeros((max(len(rows), 1), width), dtype=torch.int64)
        for at, row in enumerate(rows):
            ids[at, : len(row.ids)] = row.ids
        sizes = torch.tensor([len(row.targets) for row in rows], dtype=torch.int64)
        nothing = torch.zeros(0, dtype=torch.int64)
        index = [at * width + row.positions for at, row in enumerate(rows)]
        offsets = [torch.arange(each.start, each.stop) for each in self.offsets(indexes)]
        return MicroBatch(
            ids=ids.to(self.device),
            index=torch.cat([nothing, *index]).to(self.device),
            targets=torch.cat([nothing, *(row.targets for row in rows)]).to(self.device),
            rows=torch.arange(len(rows)).repeat_interleave(sizes).to(self.device),
            sizes=sizes.to(self.device),
            rollout_sizes=torch.tensor(
                [self.rollout_sizes[row.rollout] for row in rows], dtype=torch.int64
            ).to(self.device),
            offsets=torch.cat([nothing, *offsets]).to(self.device),
        )


def make_inputs(samples: Sequence[TrainingSample], device: torch.device) -> Inputs:
    """The tensors of samples that `check_samples` accepts."""
    rows: list[Row] = []
    behaviour: list[Tensor] = [torch.zeros(0)]
    start = 0
    for sample in samples:
        ids = torch.tensor(sample.ids, dtype=torch.int64)
        # No model predicts the first token.
        positions = torch.tensor(sample.mask[1:], dtype=torch.bool).nonzero().flatten()
        if len(positions) == 0:
            continue
        targets = positions + 1
        rows.append(
            Row(
                ids=ids[: int(targets[-1])],
                positions=positions,
                targets=ids[targets],
                start=start,
                advantage=sample.advantage,
                reward=sample.reward,
                rollout=sample.ticket,
            )
        )
        start += len(targets)
        behaviour.append(torch.tensor(sample.logprobs, dtype=torch.float32)[targets])
    return Inputs(rows=rows, behaviour=torch.cat(behaviour).to(device), device=device)


def check_samples(samples: Sequence[TrainingSample], vocabulary: int) -> None:
    """Raise `TrainingError` for a sample that a model with this vocabulary size cannot train on."""
    for sample in samples:
        _check(sample, vocabulary)


def _check(sample: TrainingSample, vocabulary: int) -> None:
    where = f"a sample of {sample.ticket}"
    if not len(sample.ids) == len(sample.mask) == len(sample.logprobs):
        raise TrainingError(
            f"{where} has {len(sample.ids)} token ids, {len(sample.mask)} mask entries and "
            f"{len(sample.logprobs)} log probabilities: its trajectory is damaged"
        )
    if len(sample.ids) and not 0 <= min(sample.ids) <= max(sample.ids) < vocabulary:
        wrong = min(sample.ids) if min(sample.ids) < 0 else max(sample.ids)
        raise TrainingError(
            f"{where} has token id {wrong}, but the trained model has ids 0 to "
            f"{vocabulary - 1}: the server that generated it uses another tokenizer. "
            "Serve the model of [training] model and start a new run: this one holds rollouts of "
            "the other model"
        )
    if not (math.isfinite(sample.advantage) and math.isfinite(sample.reward)):
        raise TrainingError(
            f"{where} has reward {sample.reward} and advantage {sample.advantage}: "
            "only finite numbers can be trained on"
        )
