"""Statistics of a step: sums over trained tokens, kept on the device until the end of the step."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from plimsoll.training.learner.ranks import maximum_of, sum_of

__all__ = ["TokenStatistics"]

_SUMS = (
    "loss",
    "tokens",
    "kl",
    "reference_kl",
    "entropy",
    "ratio",
    "clipped",
    "weight",
    "truncated",
    "value_loss",
)


class TokenStatistics:
    """Sums over the tokens that went through the model, and over ranks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.clear()

    def clear(self) -> None:
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=self._device)
        self._max_ratio = torch.zeros((), dtype=torch.float64, device=self._device)
        self._added: set[str] = set()

    def add(self, sums: Mapping[str, Tensor]) -> None:
        for name, value in sums.items():
            self._sums[_SUMS.index(name)] += value.detach()
        self._added.update(sums)

    def add_largest(self, ratios: Tensor) -> None:
        if len(ratios):
            self._max_ratio = torch.maximum(self._max_ratio, ratios.detach().max().double())

    def include(self, other: "TokenStatistics") -> None:
        self._sums += other._sums
        self._max_ratio = torch.maximum(self._max_ratio, other._max_ratio)
        self._added |= other._added

    def total(self, name: str) -> float | None:
        """None if it was never added or is not finite."""
        value = float(self._sums[_SUMS.index(name)])
        return value if name in self._added and math.isfinite(value) else None

    def mean(self, name: str) -> float | None:
        """The mean over the tokens that went through the model."""
        value, tokens = self.total(name), self.total("tokens")
        return value / tokens if value is not None and tokens else None

    def largest_ratio(self) -> float | None:
        value = float(self._max_ratio)
        return value if value and math.isfinite(value) else None

    def reduce(self) -> None:
        """Add the statistics of the other ranks. Collective."""
        sum_of(self._sums)
        maximum_of(self._max_ratio)
