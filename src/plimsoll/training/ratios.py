"""Ratios of probabilities: of the weights that are trained to those of before.

Every function is of the trained tokens of some samples, one after another: a value for each.
`rows` says which sample a token is of, `sizes` how many trained tokens that sample has.
"""

import torch
from torch import Tensor

__all__ = ["log_ratio", "sequence_ratio", "token_ratio", "truncated_weight"]

_FARTHEST = 20.0
"""Beyond e^20 the exponential of a float32 gives no gradient worth having, and soon infinity."""


def log_ratio(new: Tensor, old: Tensor) -> Tensor:
    """log π_new − log π_old, within ±20."""
    return (new - old).clamp(-_FARTHEST, _FARTHEST)


def token_ratio(new: Tensor, old: Tensor) -> Tensor:
    """r_t = π_new(t) / π_old(t)."""
    return log_ratio(new, old).exp()


def sequence_ratio(new: Tensor, old: Tensor, rows: Tensor, sizes: Tensor) -> Tensor:
    """s_i = exp(1/|i| · Σ_t log r_t), the same for each token t of sample i (GSPO)."""
    shares = log_ratio(new, old) / sizes[rows]
    means = torch.zeros(len(sizes), dtype=shares.dtype, device=shares.device)
    return means.index_add(0, rows, shares).exp()[rows]


def truncated_weight(ratio: Tensor, cap: float) -> Tensor:
    """w = min(π_proximal / π_behaviour, cap) of such a ratio, a constant to the gradient."""
    return ratio.clamp(max=cap).detach()
