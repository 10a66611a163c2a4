"""The KV cache of a generator, and forward passes of a model that use it.

The cache has one buffer for each layer and one slot for each row. A token is stored at the index of
its position, so nothing is padded, and a slot can be extended, copied and read on its own. Reads
are slices of the buffer, never copies.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from plimsoll.core.errors import UsageError

__all__ = ["CachedModel", "KVCache", "Window"]

ROUND = 64
"""The capacity in tokens grows in multiples of this, by at least a quarter."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the cache that a forward pass writes and reads."""

    first: int
    """The first slot; the slots of the rows are consecutive."""
    slots: Tensor
    """The indexes of all slots."""
    starts: Tensor
    """The position of the first new token of each row."""
    start: int
    """The same as a number, if there is a single row."""
    end: int
    """Positions below it are read."""


class KVCache(Cache):
    """The cache in the form that transformers expects. `window` is set before each pass."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.window: Window | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._slots = 0
        self._capacity = 0

    def reserve(self, slots: int, tokens: int) -> None:
        """Grow to `slots` slots of `tokens` tokens. Keeps the content."""
        if slots <= self._slots and tokens <= self._capacity:
            return
        if slots > self._slots:
            slots = max(slots, 2 * self._slots)
        if tokens > self._capacity:
            tokens = -(-max(tokens, self._capacity + self._capacity // 4) // ROUND) * ROUND
        self._slots, self._capacity = max(slots, self._slots), max(tokens, self._capacity)
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (self._grown(keys), self._grown(values))

    def drop(self) -> None:
        """Free all memory."""
        self._layers.clear()
        self._slots = self._capacity = 0

    def copy(self, source: int, target: int, tokens: int) -> None:
        for keys, values in self._layers.values():
            keys[target, :, :tokens] = keys[source, :, :tokens]
            values[target, :, :tokens] = values[source, :, :tokens]

    def swap(self, one: int, other: int, tokens: int) -> None:
        """Exchange the first tokens of two slots."""
        for buffers in self._layers.values():
            for buffer in buffers:
                copied = buffer[one, :, :tokens].clone()
                buffer[one, :, :tokens] = buffer[other, :, :tokens]
                buffer[other, :, :tokens] = copied

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Store the new keys and values of a layer and return all visible ones. Each layer of the
        model calls it."""
        del args, kwargs
        window = self.window
        assert window is not None
        keys, values = self._layer(layer_idx, key_states, value_states)
        rows, _, new, _ = key_states.shape
        last = window.first + rows
        if new == 1:
            keys[window.slots, :, window.starts] = key_states[:, :, 0]
            values[window.slots, :, window.starts] = value_states[:, :, 0]
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
            found = self._layers[index] = (self._empty(keys), self._empty(values))
        return found

    def _empty(self, like: Tensor) -> Tensor:
        # Zeros: positions beyond the tokens of a slot are masked, but no mask removes a NaN.
        shape = (self._slots, like.shape[1], self._capacity, like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def _grown(self, old: Tensor) -> Tensor:
        slots, heads, tokens, size = old.shape
        del heads, size
        new = self._empty(old)
        new[:slots, :, :tokens] = old
        return new


CHECKED = 12
"""Tokens of the check that a model computes the same with and without the cache."""


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

        `ids` are new tokens of rows in slots from `first` on, `starts` their first positions,
        and `end` is behind the last position of all.
        """
        rows, new = ids.shape
        start = int(starts[0]) if rows == 1 else 0
        slots = torch.arange(first, first + rows, device=self.device)
        cache.window = Window(first, slots, starts, start, end)
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
        """Raise `UsageError` for a model whose results differ with the cache."""
        ids = torch.arange(CHECKED, device=self.device).unsqueeze(0) % self._vocabulary
        expected = self._forward(input_ids=ids, use_cache=False).logits[0, -1].float()
        cache = KVCache()
        cache.reserve(2, CHECKED)
        found = torch.empty_like(expected)
        for start, end in ((0, 5), (5, 9), *((n, n + 1) for n in range(9, CHECKED))):
            starts = torch.tensor([start], device=self.device)
            found = self.run(cache, 1, ids[:, start:end], starts, end)[0].float()
        if not torch.allclose(found, expected, rtol=0.05, atol=0.05 * float(expected.abs().max())):
            raise _unsupported("its results with a cache differ from those without")


def _attention_kinds(model: PreTrainedModel) -> dict[str, int | None]:
    """The attention kinds of the model's layers, each with its window size."""
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
        raise _unsupported(f"it has layers of the kind {unknown[0]}")
    return {kind: windows[kind] for kind in dict.fromkeys(kinds)}


def _unsupported(why: str) -> UsageError:
    return UsageError(
        f'the policy "torch" cannot serve this model: {why}. Serve it with vLLM or SGLang, and'
        ' train it with policy = "openai"'
    )
