"""The networks of a learner (policy, reference, critic) and their optimizers."""

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
    """Predicts the expected reward at each token (ppo): a copy of the model with a value head.

    The head is zero at first, so that an untrained critic predicts 0.
    """

    def __init__(self, model: PreTrainedModel, precision: Precision) -> None:
        super().__init__()
        width = cast(nn.Linear, model.get_output_embeddings()).in_features
        self.backbone = cast(PreTrainedModel, model.base_model)
        self.head = nn.Linear(width, 1, bias=False, device=model.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        self._precision = precision

    def forward(self, batch: MicroBatch) -> Tensor:
        """The value predicted before each trained token."""
        with self._precision():
            hidden = backbone_of(self.backbone)(batch.ids).flatten(0, 1)[batch.index]
        # A sum over one element instead of a squeeze: FSDP supports no views.
        return self.head(hidden.float()).sum(-1)


class Networks:
    """The policy, a reference if [training] kl is set, and a critic for ppo.

    - Weights are float32 whatever the compute dtype is: bfloat16 would lose small updates.
    - There is no dropout: the probability of a token must be deterministic.
    """

    def __init__(self, config: TrainingConfig, path: Path, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._precision = Precision(device, find_dtype(config.dtype, device))
        model = self._load_trainable(path)
        self.vocabulary = vocabulary_of(model)
        self.policy = Scorer(model, self._precision)
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

    def _load_trainable(self, path: Path) -> PreTrainedModel:
        model = self._load(path)
        if self._config.recompute:
            for layer in layers_of(model):
                recompute_forward(layer)
        return model

    def _reference(self, path: Path) -> Scorer:
        named = self._config.reference
        model = self._load(path if named is None else Path(named))
        model.requires_grad_(False)
        reference = Scorer(model, self._precision)
        shard(reference, layers_of(model), self._device)
        return reference

    def _critic(self, path: Path) -> Critic:
        critic = Critic(self._load_trainable(path), self._precision)
        shard(critic, layers_of(critic.backbone), self._device)
        return critic

    def _optimizer(self, module: nn.Module, rate: float) -> Optimizer:
        return Optimizer(
            module,
            rate=rate,
            weight_decay=self._config.weight_decay,
            clip_gradient=self._config.clip_gradient,
        )
