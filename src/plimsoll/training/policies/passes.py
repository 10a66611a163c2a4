"""Passes of a model over new tokens of rows whose earlier tokens are in the cache."""

from typing import Protocol, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from plimsoll.core.errors import UsageError
from plimsoll.training.policies.cache import PlaceCache, Window

__all__ = ["Passes"]

CHECKED = 12
"""Tokens of the check that a model computes with the cache what it does without."""


class _Output(Protocol):
    logits: Tensor


class _Config(Protocol):
    def get_text_config(self) -> object: ...


class _Forward(Protocol):
    def __call__(self, **inputs: object) -> _Output: ...


class Passes:
    """Calls the model. Each row sees its own earlier tokens, and nothing else."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.device: torch.device = model.device
        self._forward = cast(_Forward, model)
        self._kinds = _attention_kinds(model)
        self._least = torch.finfo(model.dtype).min
        self._dtype = model.dtype
        self._vocabulary = cast(torch.nn.Embedding, model.get_input_embeddings()).num_embeddings

    def run(self, cache: PlaceCache, first: int, ids: Tensor, starts: Tensor, end: int) -> Tensor:
        """The logits after the last token of each row.

        `ids` are new tokens of rows in places from `first` on, `starts` their first positions,
        and `end` is behind the last position of all.
        """
        rows, new = ids.shape
        start = int(starts[0]) if rows == 1 else 0
        places = torch.arange(first, first + rows, device=self.device)
        cache.window = Window(first, places, starts, start, end)
        positions = starts.unsqueeze(1)
        if new > 1:
            positions = positions + torch.arange(new, device=self.device)
        output = self._forward(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._masks(positions, end),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _masks(self, positions: Tensor, end: int) -> Tensor | dict[str, Tensor]:
        seen = torch.arange(end, device=self.device)
        masks = {
            kind: self._mask(positions.unsqueeze(2), seen, window)
            for kind, window in self._kinds.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _mask(self, positions: Tensor, seen: Tensor, window: int | None) -> Tensor:
        hidden = seen > positions
        if window is not None:
            hidden |= seen <= positions - window
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self.device)
        return mask.masked_fill_(hidden, self._least).unsqueeze(1)

    @torch.inference_mode()
    def check(self) -> None:
        """Raises `UsageError` for a model that computes something else with the cache."""
        ids = torch.arange(CHECKED, device=self.device).unsqueeze(0) % self._vocabulary
        wanted = self._forward(input_ids=ids, use_cache=False).logits[0, -1].float()
        cache = PlaceCache()
        cache.reserve(2, CHECKED)
        found = torch.empty_like(wanted)
        for start, end in ((0, 5), (5, 9), *((n, n + 1) for n in range(9, CHECKED))):
            starts = torch.tensor([start], device=self.device)
            found = self.run(cache, 1, ids[:, start:end], starts, end)[0].float()
        if not torch.allclose(found, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max())):
            raise _unknown("it computes something else with a cache than without")


def _attention_kinds(model: PreTrainedModel) -> dict[str, int | None]:
    """The kinds of attention that the model's layers have, with how far back each one looks."""
    config = cast(_Config, model.config).get_text_config()
    window = cast(int | None, getattr(config, "sliding_window", None))
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = cast(list[str] | None, getattr(config, "layer_types", None))
    if kinds is None:
        kinds = ["full_attention" if window is None else "sliding_attention"]
    windows = {"full_attention": None, "sliding_attention": window}
    unknown = sorted(set(kinds) - set(windows))
    if unknown:
        raise _unknown(f"some of its layers are of the kind {unknown[0]}")
    return {kind: windows[kind] for kind in dict.fromkeys(kinds)}


def _unknown(why: str) -> UsageError:
    return UsageError(
        f'the policy "torch" cannot serve this model: {why}. Serve it with vLLM or SGLang, and'
        ' train it with policy = "openai"'
    )
