"""The keys and values of all rows that a generator knows: a place for each in one buffer a layer.

A token stands at the index of its position, so nothing is padded and a place can be extended,
copied and read on its own. Reads are slices of the buffer, never copies.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache

__all__ = ["PlaceCache", "Window"]

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


class PlaceCache(Cache):
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
