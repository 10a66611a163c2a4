"""Advantages of single tokens, from the values that a critic gives them.

What is known of every trained token of a batch before the first update of a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll.config.training import TrainingConfig
from plimsoll.training.learner.inputs import Inputs
from plimsoll.training.learner.micro_batches import MicroBatchRunner
from plimsoll.training.learner.networks import Networks
from plimsoll.training.learner.torch_calls import numbers

__all__ = ["TokenTargets", "compute_targets", "generalized_advantages", "whiten"]

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


@dataclass(frozen=True, slots=True, eq=False)
class TokenTargets:
    """A value of each kind for each trained token."""

    behaviour: Tensor
    """Log probabilities under the weights that generated."""
    advantages: Tensor
    proximal: Tensor | None
    """Log probabilities under the weights at the start of the step. None where there is but one
    update, so that they are what the model says when it makes it."""
    values: Tensor | None
    returns: Tensor | None
    """What the critic said, and what it should have said (ppo)."""


def compute_targets(
    config: TrainingConfig,
    nets: Networks,
    passes: MicroBatchRunner,
    inputs: Inputs,
    trained: Sequence[int],
) -> TokenTargets:
    """With a pass of the trained rows through the policy and the critic where one is needed."""
    proximal = None
    if config.updates > 1 and config.correction == "truncated":
        proximal = passes.scores(inputs, trained, lambda batch: nets.policy(batch, False)[0])
    if nets.critic is None:
        return TokenTargets(inputs.behaviour, inputs.advantages, proximal, None, None)
    values = passes.scores(inputs, trained, nets.critic)
    advantages = _of_tokens(inputs, values, config)
    returns = advantages + values
    if config.normalize:
        advantages = whiten(advantages)
    return TokenTargets(inputs.behaviour, advantages, proximal, values, returns)


def _of_tokens(inputs: Inputs, values: Tensor, config: TrainingConfig) -> Tensor:
    given: list[float] = numbers(values)
    found: list[float] = []
    for row in inputs.rows:
        own = given[row.start : row.start + len(row.targets)]
        found += generalized_advantages(own, row.reward, config.discount, config.trace)
    return torch.tensor(found, dtype=torch.float32, device=inputs.device)
