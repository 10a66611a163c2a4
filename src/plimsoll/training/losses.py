"""What is made small, for each trained token, and how the tokens of a batch are averaged."""

from typing import Literal

import torch
from torch import Tensor

from plimsoll.training.ratios import log_ratio

__all__ = ["average", "clipped", "clipped_surrogate", "distance", "value_loss"]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """min(r·A, clip(r, 1 − low, 1 + high)·A), which is to become large."""
    return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Whether the clip takes the token's gradient away: r is past it on the side A pushes to."""
    too_high = (ratio > 1 + high) & (advantages > 0)
    return too_high | ((ratio < 1 - low) & (advantages < 0))


def distance(new: Tensor, reference: Tensor) -> Tensor:
    """q/π − 1 − log(q/π), an estimate of KL(π‖q) at a token of π that is never below 0."""
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
    """What these tokens add to the mean of the whole batch.

    token: Σ_t v_t / total, with the tokens of the batch in `total`.
    sequence: Σ_i (1/|i| · Σ_t v_t) / total, with the rollouts of the batch in `total`. A sequence
    is a whole rollout: one whose trajectory has several branches weighs no more than another.
    """
    if averaging == "sequence":
        values = values / rollout_sizes[rows]
    return values.sum() / total
