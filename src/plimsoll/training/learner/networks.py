"""Says of each token what reward is to be expected from there on (ppo).

The networks of a learner, and what changes them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from plimsoll.config.training import TrainingConfig
from plimsoll.training.learner.inputs import MicroBatch
from plimsoll.training.learner.optimizer import Optimizer
from plimsoll.training.learner.ranks import shard
from plimsoll.training.learner.scorer import (
    Precision,
    Scorer,
    backbone_of,
    layers_of,
    vocabulary_of,
)
from plimsoll.training.learner.torch_calls import recompute_forward
from plimsoll.training.models import find_dtype, load_model

__all__ = ["Critic", "Networks"]


class Critic(nn.Module):
    """A copy of the model with another head. It expects 0 before it is trained."""

    def __init__(self, model: PreTrainedModel, computation: Precision) -> None:
        super().__init__()
        width = cast(nn.Linear, model.get_output_embeddings()).in_features
        self.backbone = cast(PreTrainedModel, model.base_model)
        self.head = nn.Linear(width, 1, bias=False, device=model.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        self._computation = computation

    def forward(self, batch: MicroBatch) -> Tensor:
        """The value before each trained token."""
        with self._computation():
            hidden = backbone_of(self.backbone)(batch.ids).flatten(0, 1)[batch.index]
        # A sum over one: FSDP takes no views.
        return self.head(hidden.float()).sum(-1)


class Networks:
    """The policy; a reference where distance from it costs; a critic where there is one.

    Weights are float32, whatever is computed in: small steps would be lost in less. Nothing is
    dropped out: what a token's probability is must not be a matter of chance.
    """

    def __init__(self, config: TrainingConfig, path: Path, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._computation = Precision(device, find_dtype(config.dtype, device))
        model = self._load_learning(path)
        self.vocabulary = vocabulary_of(model)
        self.policy = Scorer(model, self._computation)
        shard(self.policy, layers_of(model), device)
        self.optimizer = self._optimizer(self.policy, config.learning_rate)
        self.reference = self._reference(path) if config.kl else None
        self.critic = self._critic(path) if config.algorithm == "ppo" else None
        self.critic_optimizer = (
            None if self.critic is None else self._optimizer(self.critic, config.critic_rate)
        )

    @property
    def optimizers(self) -> Iterator[Optimizer]:
        yield self.optimizer
        if self.critic_optimizer is not None:
            yield self.critic_optimizer

    def _load(self, path: Path) -> PreTrainedModel:
        return load_model(path, device=str(self._device), dtype="float32")

    def _load_learning(self, path: Path) -> PreTrainedModel:
        model = self._load(path)
        if self._config.recompute:
            for layer in layers_of(model):
                recompute_forward(layer)
        return model

    def _reference(self, path: Path) -> Scorer:
        named = self._config.reference
        model = self._load(path if named is None else Path(named))
        model.requires_grad_(False)
        reference = Scorer(model, self._computation)
        shard(reference, layers_of(model), self._device)
        return reference

    def _critic(self, path: Path) -> Critic:
        critic = Critic(self._load_learning(path), self._computation)
        shard(critic, layers_of(critic.backbone), self._device)
        return critic

    def _optimizer(self, module: nn.Module, rate: float) -> Optimizer:
        return Optimizer(
            module,
            rate=rate,
            weight_decay=self._config.weight_decay,
            clip_gradient=self._config.clip_gradient,
        )
