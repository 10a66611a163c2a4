"""Advantages of single tokens, from the values that a critic gives them."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["generalized_advantages", "whiten"]

_LEAST_STD = 1e-8


def generalized_advantages(
    values: Sequence[float], reward: float, discount: float, trace: float
) -> list[float]:
    """A_t = Σ_k (γλ)^k δ_(t+k), with δ_t = r_t + γ·V_(t+1) − V_t.

    Over the trained tokens of one sample alone: the next of a token is the next trained one,
    whatever stands between them. The reward is the last token's; after it V is 0.
    """
    advantages = [0.0] * len(values)
    following, after, due = 0.0, 0.0, reward
    for at in range(len(values) - 1, -1, -1):
        surprise = due + discount * after - values[at]
        following = advantages[at] = surprise + discount * trace * following
        after, due = values[at], 0.0
    return advantages


def whiten(values: Tensor) -> Tensor:
    """(v − mean) / deviation, over all tokens of a batch."""
    spread, mean = torch.std_mean(values, correction=0)
    return (values - mean) / (spread + _LEAST_STD)
