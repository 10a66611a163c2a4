"""Log probabilities and entropies of trained tokens, and of no others.

Logits are the largest tensors of all: there are some only for trained tokens, and at most
`_MOST` of them at a time, made again for the gradient.
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

_MOST = 2**25
"""Logits at a time: 128 MB in float32."""


class _Hidden(Protocol):
    last_hidden_state: Tensor


class _Logits(Protocol):
    logits: Tensor


class Precision:
    """Where, and how precisely: weights are float32, what is computed of them may be less."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self._dtype = dtype

    def __call__(self) -> AbstractContextManager[object]:
        wanted = self._dtype != torch.float32
        return torch.autocast(self.device.type, dtype=self._dtype, enabled=wanted)


class Scorer(nn.Module):
    """A causal language model that is asked how likely tokens are."""

    def __init__(
        self, model: PreTrainedModel, computation: Precision, *, most: int = _MOST
    ) -> None:
        super().__init__()
        self.model = model
        self._computation = computation
        self._rows = max(1, most // vocabulary_of(model))
        self._plain = _is_plain(model)

    def forward(self, batch: MicroBatch, keep_entropy: bool) -> tuple[Tensor, Tensor]:
        """Of each trained token the log probability, and the entropy of what it was drawn from.

        The entropy has a gradient only where it is to be kept.
        """
        with self._computation():
            hidden = self._hidden(batch)
        parts = zip(split(hidden, self._rows), split(batch.targets, self._rows), strict=True)
        score = self._score if len(hidden) <= self._rows else recomputed(self._score)
        scores = [score(part, targets, keep_entropy) for part, targets in parts]
        return torch.cat([each for each, _ in scores]), torch.cat([each for _, each in scores])

    def _hidden(self, batch: MicroBatch) -> Tensor:
        """What logits are made of: logits themselves where only the model knows how."""
        if self._plain:
            return backbone_of(self.model)(batch.ids).flatten(0, 1)[batch.index]
        model = cast(Callable[..., _Logits], self.model)
        return model(input_ids=batch.ids, use_cache=False).logits.flatten(0, 1)[batch.index]

    def _score(self, hidden: Tensor, targets: Tensor, keep_entropy: bool) -> tuple[Tensor, Tensor]:
        if self._plain:
            with self._computation():
                hidden = head_of(self.model)(hidden)
        logits = hidden.float()
        norm = logits.logsumexp(-1)
        chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - norm
        with torch.set_grad_enabled(keep_entropy and torch.is_grad_enabled()):
            entropy = norm - ((logits - norm.unsqueeze(-1)).exp() * logits).sum(-1)
        return chosen, entropy


def backbone_of(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """From token ids to what stands before the head.

    Without an attention mask: padding stands to the right, where nothing looks from the left.
    """
    backbone = cast(Callable[..., _Hidden], model.base_model)
    return lambda ids: backbone(input_ids=ids, use_cache=False).last_hidden_state


def head_of(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    return cast(Callable[[Tensor], Tensor], model.get_output_embeddings())


def vocabulary_of(model: PreTrainedModel) -> int:
    """How many token ids it knows."""
    return cast(nn.Embedding, model.get_input_embeddings()).num_embeddings


def layers_of(model: PreTrainedModel) -> Iterator[nn.Module]:
    """The blocks that it is made of."""
    names = cast("set[str] | list[str] | None", getattr(model, "_no_split_modules", None)) or ()
    return (module for module in model.modules() if type(module).__name__ in names)


@torch.no_grad()
def _is_plain(model: PreTrainedModel) -> bool:
    """Whether logits are the head of the last hidden state, and nothing besides.

    Some models scale or cap them, each in its own way: asked here instead of known.
    """
    ids = torch.arange(min(vocabulary_of(model), 8), device=model.device).unsqueeze(0)
    whole = cast(Callable[..., _Logits], model)(input_ids=ids, use_cache=False).logits
    made = head_of(model)(backbone_of(model)(ids))
    return whole.shape == made.shape and torch.allclose(whole, made, rtol=1e-5, atol=1e-5)
