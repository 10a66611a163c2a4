"""What is measured of a step: sums over trained tokens, on the device until the end."""

import math
from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor

from plimsoll.training.parallel import maximum_of, sum_of

__all__ = ["Figures", "StepReport"]

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


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A step in figures. One is None where no token gave it, or where it is not finite."""

    loss: float | None = None
    grad_norm: float | None = None
    """Before it was clipped; the largest where a step has several updates."""
    kl: float | None = None
    """How far the weights at the start of the step are from those that generated."""
    reference_kl: float | None = None
    entropy: float | None = None
    ratio_mean: float | None = None
    ratio_max: float | None = None
    clipped: float | None = None
    """The share of tokens whose gradient the clip takes away."""
    weight_mean: float | None = None
    truncated: float | None = None
    """The share of tokens that would weigh more than the cap."""
    value_loss: float | None = None
    tokens: int
    """Those that are trained on; others are not counted."""
    samples: int
    learning_rate: float
    micro_batches: int = 0
    """On each rank."""
    seconds: float
    skipped: str = ""
    """Why the weights are, wholly or in part, as they were."""


class Figures:
    """Sums over the tokens that went through the model, and over ranks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.clear()

    def clear(self) -> None:
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=self._device)
        self._most = torch.zeros((), dtype=torch.float64, device=self._device)
        self._given: set[str] = set()

    def add(self, sums: Mapping[str, Tensor]) -> None:
        for name, value in sums.items():
            self._sums[_SUMS.index(name)] += value.detach()
        self._given.update(sums)

    def add_largest(self, ratios: Tensor) -> None:
        if len(ratios):
            self._most = torch.maximum(self._most, ratios.detach().max().double())

    def include(self, other: "Figures") -> None:
        self._sums += other._sums
        self._most = torch.maximum(self._most, other._most)
        self._given |= other._given

    def total(self, name: str) -> float | None:
        """None where it was never given, or is not finite."""
        value = float(self._sums[_SUMS.index(name)])
        return value if name in self._given and math.isfinite(value) else None

    def mean(self, name: str) -> float | None:
        """Over the tokens that went through the model."""
        value, tokens = self.total(name), self.total("tokens")
        return value / tokens if value is not None and tokens else None

    def largest_ratio(self) -> float | None:
        value = float(self._most)
        return value if value and math.isfinite(value) else None

    def meet(self) -> None:
        """Adds those of the other ranks."""
        sum_of(self._sums)
        maximum_of(self._most)
