"""Losses of trained tokens, probability ratios, and the average over a batch.

Tensors hold one value for each trained token, the samples concatenated. `rows` holds the sample of
each token, `sizes` the number of trained tokens of each sample.
"""

from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "average",
    "clipped",
    "clipped_surrogate",
    "distance",
    "log_ratio",
    "sequence_ratio",
    "token_ratio",
    "truncated_weight",
    "value_loss",
]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """min(r·A, clip(r, 1 − low, 1 + high)·A), which training maximizes."""
    return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Whether the clip removes the token's gradient: r is outside on the side that A favours."""
    too_high = (ratio > 1 + high) & (advantages > 0)
    return too_high | ((ratio < 1 - low) & (advantages < 0))


def distance(new: Tensor, reference: Tensor) -> Tensor:
    """q/π − 1 − log(q/π), an estimate of KL(π‖q) at a token of π that is never negative."""
    log = log_ratio(reference, new)
    return log.exp() - 1 - log


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> Tensor:
    """½·max((V − R)², (clip(V, V_old ± clip) − R)²)."""
    near = torch.minimum(torch.maximum(values, old - clip), old + clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (near - returns) ** 2)


def average(
    values: Tensor,
    rows: Tensor,
    rollout_sizes: Tensor,
    averaging: Literal["token", "sequence"],
    total: float,
) -> Tensor:
    """The contribution of these tokens to the mean of the whole batch.

    token: Σ_t v_t / total, where `total` is the number of tokens of the batch.
    sequence: Σ_i (1/|i| · Σ_t v_t) / total, where `total` is the number of rollouts of the batch.
    A sequence is a whole rollout: several branches do not add weight.
    """
    if averaging == "sequence":
        values = values / rollout_sizes[rows]
    return values.sum() / total


_MAX_LOG_RATIO = 20.0
"""Beyond e^20 a float32 exponential has no useful gradient and soon overflows."""


def log_ratio(new: Tensor, old: Tensor) -> Tensor:
    """log π_new − log π_old, within ±20."""
    return (new - old).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def token_ratio(new: Tensor, old: Tensor) -> Tensor:
    """r_t = π_new(t) / π_old(t)."""
    return log_ratio(new, old).exp()


def sequence_ratio(new: Tensor, old: Tensor, rows: Tensor, sizes: Tensor) -> Tensor:
    """s_i = exp(1/|i| · Σ_t log r_t), the same for each token t of sample i (GSPO)."""
    shares = log_ratio(new, old) / sizes[rows]
    means = torch.zeros(len(sizes), dtype=shares.dtype, device=shares.device)
    return means.index_add(0, rows, shares).exp()[rows]


def truncated_weight(ratio: Tensor, cap: float) -> Tensor:
    """w = min(π_proximal / π_behaviour, cap), detached from the gradient."""
    return ratio.clamp(max=cap).detach()
