"""The loss of a micro-batch, put together from what the config asks for.

    loss_t = w_t · (−min(r_t·A, clip(r_t)·A) + kl · r_t · distance_t) − entropy · H_t

r is the ratio to the weights at the start of the step, and w that of those to the weights that
generated, cut at the cap. Both are of tokens, or with GSPO of whole samples. Without correction w
is 1, and r is the ratio to the weights that generated. The distance is weighed by the ratio, too:
of the policy's own tokens its mean is the divergence, and only so is its gradient that of the
divergence.
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
    """Losses of micro-batches; what is measured on the way goes to `figures`."""

    def __init__(self, config: TrainingConfig) -> None:
        self._config = config

    def policy(
        self,
        batch: MicroBatch,
        scores: tuple[Tensor, Tensor],
        known: TokenTargets,
        reference: Tensor | None,
        total: float,
        figures: TokenStatistics,
    ) -> Tensor:
        """What this micro-batch adds to the loss of its update."""
        config = self._config
        new, entropy = scores
        behaviour, advantages = known.behaviour[batch.places], known.advantages[batch.places]
        proximal = new.detach() if known.proximal is None else known.proximal[batch.places]
        corrected = config.correction == "truncated"
        ratio = self._ratio(new, proximal if corrected else behaviour, batch)
        losses = -clipped_surrogate(ratio, advantages, config.clip_low, config.clip_high)
        if reference is not None:
            from_reference = distance(new, reference)
            losses = losses + config.kl * ratio * from_reference
            figures.add({"reference_kl": from_reference.sum()})
        weight = None
        if corrected:
            weight = self._ratio(proximal, behaviour, batch)
            losses = losses * truncated_weight(weight, config.correction_cap)
        if config.entropy:
            losses = losses - config.entropy * entropy
        loss = average(losses, batch.rows, batch.rollout_sizes, config.averaging, total)
        figures.add({"loss": loss, "entropy": entropy.sum()})
        figures.add({"kl": distance(behaviour, proximal).sum()})
        self._measure(figures, ratio.detach(), advantages, weight)
        return loss

    def critic(
        self,
        batch: MicroBatch,
        values: Tensor,
        known: TokenTargets,
        total: float,
        figures: TokenStatistics,
    ) -> Tensor:
        """The same for the critic: always a mean over tokens."""
        assert known.values is not None and known.returns is not None
        places = batch.places
        clip = self._config.value_clip
        losses = value_loss(values, known.values[places], known.returns[places], clip)
        figures.add({"value_loss": losses.sum()})
        return losses.sum() / total

    def _ratio(self, new: Tensor, old: Tensor, batch: MicroBatch) -> Tensor:
        if self._config.algorithm == "gspo":
            return sequence_ratio(new, old, batch.rows, batch.sizes)
        return token_ratio(new, old)

    @torch.no_grad()
    def _measure(
        self,
        figures: TokenStatistics,
        ratio: Tensor,
        advantages: Tensor,
        weight: Tensor | None,
    ) -> None:
        config = self._config
        gone = clipped(ratio, advantages, config.clip_low, config.clip_high)
        figures.add_largest(ratio)
        figures.add(
            {
                "tokens": torch.tensor(len(ratio)),
                "ratio": ratio.sum(),
                "clipped": gone.sum(),
            }
        )
        if weight is not None:
            figures.add(
                {
                    "weight": weight.clamp(max=config.correction_cap).sum(),
                    "truncated": (weight > config.correction_cap).sum(),
                }
            )
