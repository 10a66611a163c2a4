"""Says of each token what reward is to be expected from there on (ppo)."""

from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from plimsoll.training.forward import Computation, backbone_of
from plimsoll.training.inputs import MicroBatch

__all__ = ["Critic"]


class Critic(nn.Module):
    """A copy of the model with another head. It expects 0 before it is trained."""

    def __init__(self, model: PreTrainedModel, computation: Computation) -> None:
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
