"""Log probabilities and entropies of trained tokens, and of no others.

Logits are the largest tensors. They are computed for trained tokens only, at most `_MAX_LOGITS` at
a time, and recomputed for the gradient.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from plimsoll.training.learner.inputs import MicroBatch
from plimsoll.training.learner.torch_calls import recomputed, split

__all__ = ["Precision", "Scorer", "backbone_of", "layers_of", "vocabulary_of"]

_MAX_LOGITS = 2**25
"""Logits in memory at a time: 128 MB in float32."""


class _Hidden(Protocol):
    last_hidden_state: Tensor


class _Logits(Protocol):
    logits: Tensor


class Precision:
    """The device and the compute dtype. Weights are float32; the forward pass may use less."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self._dtype = dtype

    def __call__(self) -> AbstractContextManager[object]:
        is_reduced = self._dtype != torch.float32
        return torch.autocast(self.device.type, dtype=self._dtype, enabled=is_reduced)


class Scorer(nn.Module):
    """A causal language model that scores given tokens."""

    def __init__(
        self, model: PreTrainedModel, precision: Precision, *, max_logits: int = _MAX_LOGITS
    ) -> None:
        super().__init__()
        self.model = model
        self._precision = precision
        self._rows = max(1, max_logits // vocabulary_of(model))
        self._plain = _is_plain(model)

    def forward(self, batch: MicroBatch, keep_entropy: bool) -> tuple[Tensor, Tensor]:
        """The log probability of each trained token and the entropy of its distribution.

        The entropy has a gradient only with `keep_entropy`.
        """
        with self._precision():
            hidden = self._hidden(batch)
        parts = zip(split(hidden, self._rows), split(batch.targets, self._rows), strict=True)
        score = self._score if len(hidden) <= self._rows else recomputed(self._score)
        scores = [score(part, targets, keep_entropy) for part, targets in parts]
        return torch.cat([each for each, _ in scores]), torch.cat([each for _, each in scores])

    def _hidden(self, batch: MicroBatch) -> Tensor:
        """Hidden states before the head; logits if the model post-processes those."""
        if self._plain:
            return backbone_of(self.model)(batch.ids).flatten(0, 1)[batch.index]
        model = cast(Callable[..., _Logits], self.model)
        return model(input_ids=batch.ids, use_cache=False).logits.flatten(0, 1)[batch.index]

    def _score(self, hidden: Tensor, targets: Tensor, keep_entropy: bool) -> tuple[Tensor, Tensor]:
        if self._plain:
            with self._precision():
                hidden = head_of(self.model)(hidden)
        logits = hidden.float()
        norm = logits.logsumexp(-1)
        chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - norm
        with torch.set_grad_enabled(keep_entropy and torch.is_grad_enabled()):
            entropy = norm - ((logits - norm.unsqueeze(-1)).exp() * logits).sum(-1)
        return chosen, entropy


def backbone_of(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """A function from token ids to the hidden states before the head.

    It needs no attention mask: padding is on the right, where causal attention never looks.
    """
    backbone = cast(Callable[..., _Hidden], model.base_model)
    return lambda ids: backbone(input_ids=ids, use_cache=False).last_hidden_state


def head_of(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    return cast(Callable[[Tensor], Tensor], model.get_output_embeddings())


def vocabulary_of(model: PreTrainedModel) -> int:
    """The vocabulary size of a model."""
    return cast(nn.Embedding, model.get_input_embeddings()).num_embeddings


def layers_of(model: PreTrainedModel) -> Iterator[nn.Module]:
    """The transformer blocks of a model."""
    names = cast("set[str] | list[str] | None", getattr(model, "_no_split_modules", None)) or ()
    return (module for module in model.modules() if type(module).__name__ in names)


@torch.no_grad()
def _is_plain(model: PreTrainedModel) -> bool:
    """Whether logits are just the head applied to the last hidden state.

    Some models scale or cap logits, each in its own way, so it is tested on a few tokens.
    """
    ids = torch.arange(min(vocabulary_of(model), 8), device=model.device).unsqueeze(0)
    whole = cast(Callable[..., _Logits], model)(input_ids=ids, use_cache=False).logits
    made = head_of(model)(backbone_of(model)(ids))
    return whole.shape == made.shape and torch.allclose(whole, made, rtol=1e-5, atol=1e-5)
