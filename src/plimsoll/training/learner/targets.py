"""Targets of trained tokens, computed before the first update of a step: proximal log
probabilities, advantages and returns."""

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

_MIN_STD = 1e-8


def generalized_advantages(
    values: Sequence[float], reward: float, discount: float, trace: float
) -> list[float]:
    """A_t = Σ_k (γλ)^k δ_(t+k), with δ_t = r_t + γ·V_(t+1) − V_t.

    Only over the trained tokens of one sample: untrained tokens in between are skipped. The last
    token gets the reward; V is 0 after it.
    """
    advantages = [0.0] * len(values)
    next_advantage, next_value, token_reward = 0.0, 0.0, reward
    for at in range(len(values) - 1, -1, -1):
        delta = token_reward + discount * next_value - values[at]
        next_advantage = advantages[at] = delta + discount * trace * next_advantage
        next_value, token_reward = values[at], 0.0
    return advantages


def whiten(values: Tensor) -> Tensor:
    """(v − mean) / standard deviation, over all tokens of a batch."""
    spread, mean = torch.std_mean(values, correction=0)
    return (values - mean) / (spread + _MIN_STD)


@dataclass(frozen=True, slots=True, eq=False)
class TokenTargets:
    """One value of each kind for each trained token."""

    behaviour: Tensor
    """Log probabilities under the weights that generated the token."""
    advantages: Tensor
    proximal: Tensor | None
    """Log probabilities under the weights at the start of the step. None for a single update: its
    own forward pass computes them."""
    values: Tensor | None
    """The critic's predictions (ppo)."""
    returns: Tensor | None
    """The critic's targets (ppo)."""


def compute_targets(
    config: TrainingConfig,
    networks: Networks,
    runner: MicroBatchRunner,
    inputs: Inputs,
    trained: Sequence[int],
) -> TokenTargets:
    """Compute the targets. Passes the trained rows through policy and critic only if needed."""
    proximal = None
    if config.updates > 1 and config.correction == "truncated":
        proximal = runner.scores(inputs, trained, lambda batch: networks.policy(batch, False)[0])
    if networks.critic is None:
        return TokenTargets(inputs.behaviour, inputs.advantages, proximal, None, None)
    values = runner.scores(inputs, trained, networks.critic)
    advantages = _token_advantages(inputs, values, config)
    returns = advantages + values
    if config.normalize:
        advantages = whiten(advantages)
    return TokenTargets(inputs.behaviour, advantages, proximal, values, returns)


def _token_advantages(inputs: Inputs, values: Tensor, config: TrainingConfig) -> Tensor:
    given: list[float] = numbers(values)
    found: list[float] = []
    for row in inputs.rows:
        own = given[row.start : row.start + len(row.targets)]
        found += generalized_advantages(own, row.reward, config.discount, config.trace)
    return torch.tensor(found, dtype=torch.float32, device=inputs.device)
