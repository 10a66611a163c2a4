"""The keys and values of all rows that a generator knows: a place for each in one buffer a layer.

A token stands at the index of its position, so nothing is padded and a place can be extended,
copied and read on its own. Reads are slices of the buffer, never copies.

Passes of a model over new tokens of rows whose earlier tokens are in the cache.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from plimsoll.core.errors import UsageError

__all__ = ["CachedModel", "KVCache", "Window"]

ROUND = 64
"""Room grows in multiples of so many tokens, and by a quarter at least."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of the cache a forward pass writes and reads."""

    first: int
    """The first place; one follows another."""
    places: Tensor
    """All of them, as indices."""
    starts: Tensor
    """For each row, the position of its first new token."""
    start: int
    """The same as a number, where there is one row."""
    end: int
    """The positions below are read."""


class KVCache(Cache):
    """What a model calls its cache. `window` is set before each pass."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.window: Window | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._places = 0
        self._room = 0

    def reserve(self, places: int, room: int) -> None:
        """Makes space for so many places of so many tokens. What is there is kept."""
        if places <= self._places and room <= self._room:
            return
        if places > self._places:
            places = max(places, 2 * self._places)
        if room > self._room:
            room = -(-max(room, self._room + self._room // 4) // ROUND) * ROUND
        self._places, self._room = max(places, self._places), max(room, self._room)
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (self._grown(keys), self._grown(values))

    def drop(self) -> None:
        """Gives all memory back."""
        self._layers.clear()
        self._places = self._room = 0

    def copy(self, source: int, target: int, tokens: int) -> None:
        for keys, values in self._layers.values():
            keys[target, :, :tokens] = keys[source, :, :tokens]
            values[target, :, :tokens] = values[source, :, :tokens]

    def swap(self, one: int, other: int, tokens: int) -> None:
        """Exchanges the first tokens of two places."""
        for buffers in self._layers.values():
            for buffer in buffers:
                kept = buffer[one, :, :tokens].clone()
                buffer[one, :, :tokens] = buffer[other, :, :tokens]
                buffer[other, :, :tokens] = kept

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Called by each layer of the model: takes what is new, gives all that is to be seen."""
        del args, kwargs
        window = self.window
        assert window is not None
        keys, values = self._layer(layer_idx, key_states, value_states)
        rows, _, new, _ = key_states.shape
        last = window.first + rows
        if new == 1:
            keys[window.places, :, window.starts] = key_states[:, :, 0]
            values[window.places, :, window.starts] = value_states[:, :, 0]
        else:
            here = slice(window.start, window.start + new)
            keys[window.first, :, here] = key_states[0]
            values[window.first, :, here] = value_states[0]
        return keys[window.first : last, :, : window.end], values[
            window.first : last, :, : window.end
        ]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        del layer_idx
        return self.window.start if self.window is not None else 0

    def _layer(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        found = self._layers.get(index)
        if found is None:
            found = self._layers[index] = (self._made(keys), self._made(values))
        return found

    def _made(self, like: Tensor) -> Tensor:
        # Zeros: a place that is read beyond its tokens is masked, and nothing masks a NaN.
        shape = (self._places, like.shape[1], self._room, like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def _grown(self, old: Tensor) -> Tensor:
        places, heads, room, size = old.shape
        del heads, size
        new = self._made(old)
        new[:places, :, :room] = old
        return new


CHECKED = 12
"""Tokens of the check that a model computes with the cache what it does without."""


class _Output(Protocol):
    logits: Tensor


class _Config(Protocol):
    def get_text_config(self) -> object: ...


class _Forward(Protocol):
    def __call__(self, **inputs: object) -> _Output: ...


class CachedModel:
    """Calls the model. Each row sees its own earlier tokens, and nothing else."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.device: torch.device = model.device
        self._forward = cast(_Forward, model)
        self._kinds = _attention_kinds(model)
        self._least = torch.finfo(model.dtype).min
        self._dtype = model.dtype
        self._vocabulary = cast(torch.nn.Embedding, model.get_input_embeddings()).num_embeddings

    def run(self, cache: KVCache, first: int, ids: Tensor, starts: Tensor, end: int) -> Tensor:
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
        cache = KVCache()
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
