"""The loss of a micro-batch, as configured by [training].

    loss_t = w_t · (−min(r_t·A, clip(r_t)·A) + kl · r_t · distance_t) − entropy · H_t

- r is the probability ratio of the trained weights to those at the start of the step (proximal).
- w is the ratio of the proximal weights to those that generated (behaviour), truncated at the cap.
- Both are ratios of tokens; with GSPO, of whole samples.
- Without correction, w is 1 and r is the ratio to the behaviour weights.
- The distance is weighted by r, too. Only then is its gradient that of the KL divergence, which is
  its mean over the policy's own tokens.
"""

import torch
from torch import Tensor

from plimsoll.config.training import TrainingConfig
from plimsoll.training.learner.inputs import MicroBatch
from plimsoll.training.learner.losses import (
    average,
    clipped,
    clipped_surrogate,
    distance,
    sequence_ratio,
    token_ratio,
    truncated_weight,
    value_loss,
)
from plimsoll.training.learner.statistics import TokenStatistics
from plimsoll.training.learner.targets import TokenTargets

__all__ = ["Objective"]


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
