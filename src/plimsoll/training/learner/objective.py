"""The loss of a micro-batch, as configured by [training].

    loss_t = w_t · (−min(r_t·A, clip(r_t)·A) + kl · r_t · distance_t) − entropy · H_t

- r is the probability ratio of the trained weights to those at the start of the step (proximal).
- w is the ratio of the proximal weights to those that generated (behaviour), truncated at the cap.
- Both are ratios of tokens; with GSPO, of whole samples.
- Without correction, w is 1 and r is the ratio to the behaviour weights.
- The distance is weighted by r, too. Only then is its gradient that of the KL divergence, which is
  its mean over the policy's own tokens.

Tensors hold one value for each trained token, the samples concatenated. `rows` holds the sample of
each token, `sizes` the number of trained tokens of each sample.
"""

from typing import Literal

import torch
from torch import Tensor

from plimsoll.config.training import TrainingConfig
from plimsoll.training.learner.inputs import MicroBatch
from plimsoll.training.learner.statistics import TokenStatistics
from plimsoll.training.learner.targets import TokenTargets

__all__ = [
    "Objective",
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


class Objective:
    """Computes losses of micro-batches and adds measurements to `statistics`."""

    def __init__(self, config: TrainingConfig) -> None:
        self._config = config

    def policy(
        self,
        batch: MicroBatch,
        scores: tuple[Tensor, Tensor],
        targets: TokenTargets,
        reference: Tensor | None,
        total: float,
        statistics: TokenStatistics,
    ) -> Tensor:
        """The contribution of this micro-batch to the policy loss of its update."""
        config = self._config
        new, entropy = scores
        behaviour, advantages = targets.behaviour[batch.offsets], targets.advantages[batch.offsets]
        proximal = new.detach() if targets.proximal is None else targets.proximal[batch.offsets]
        corrected = config.correction == "truncated"
        ratio = self._ratio(new, proximal if corrected else behaviour, batch)
        losses = -clipped_surrogate(ratio, advantages, config.clip_low, config.clip_high)
        if reference is not None:
            from_reference = distance(new, reference)
            losses = losses + config.kl * ratio * from_reference
            statistics.add({"reference_kl": from_reference.sum()})
        weight = None
        if corrected:
            weight = self._ratio(proximal, behaviour, batch)
            losses = losses * truncated_weight(weight, config.correction_cap)
        if config.entropy:
            losses = losses - config.entropy * entropy
        loss = average(losses, batch.rows, batch.rollout_sizes, config.averaging, total)
        statistics.add({"loss": loss, "entropy": entropy.sum()})
        statistics.add({"kl": distance(behaviour, proximal).sum()})
        self._measure(statistics, ratio.detach(), advantages, weight)
        return loss

    def critic(
        self,
        batch: MicroBatch,
        values: Tensor,
        targets: TokenTargets,
        total: float,
        statistics: TokenStatistics,
    ) -> Tensor:
        """The contribution to the critic's loss: always a mean over tokens."""
        assert targets.values is not None and targets.returns is not None
        offsets = batch.offsets
        clip = self._config.value_clip
        losses = value_loss(values, targets.values[offsets], targets.returns[offsets], clip)
        statistics.add({"value_loss": losses.sum()})
        return losses.sum() / total

    def _ratio(self, new: Tensor, old: Tensor, batch: MicroBatch) -> Tensor:
        if self._config.algorithm == "gspo":
            return sequence_ratio(new, old, batch.rows, batch.sizes)
        return token_ratio(new, old)

    @torch.no_grad()
    def _measure(
        self,
        statistics: TokenStatistics,
        ratio: Tensor,
        advantages: Tensor,
        weight: Tensor | None,
    ) -> None:
        config = self._config
        is_clipped = clipped(ratio, advantages, config.clip_low, config.clip_high)
        statistics.add_largest(ratio)
        statistics.add(
            {
                "tokens": torch.tensor(len(ratio)),
                "ratio": ratio.sum(),
                "clipped": is_clipped.sum(),
            }
        )
        if weight is not None:
            statistics.add(
                {
                    "weight": weight.clamp(max=config.correction_cap).sum(),
                    "truncated": (weight > config.correction_cap).sum(),
                }
            )
