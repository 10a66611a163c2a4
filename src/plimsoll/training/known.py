"""What is known of every trained token of a batch before the first update of a step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll.runs.training_config import TrainingConfig
from plimsoll.training.doors import numbers
from plimsoll.training.gae import generalized_advantages, whiten
from plimsoll.training.inputs import Inputs
from plimsoll.training.nets import Nets
from plimsoll.training.passes import Passes

__all__ = ["Known", "know"]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
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


def know(
    config: TrainingConfig, nets: Nets, passes: Passes, inputs: Inputs, trained: Sequence[int]
) -> Known:
    """With a pass of the trained rows through the policy and the critic where one is needed."""
    proximal = None
    if config.updates > 1 and config.correction == "truncated":
        proximal = passes.scores(inputs, trained, lambda batch: nets.policy(batch, False)[0])
    if nets.critic is None:
        return Known(inputs.behaviour, inputs.advantages, proximal, None, None)
    values = passes.scores(inputs, trained, nets.critic)
    advantages = _of_tokens(inputs, values, config)
    returns = advantages + values
    if config.normalize:
        advantages = whiten(advantages)
    return Known(inputs.behaviour, advantages, proximal, values, returns)


def _of_tokens(inputs: Inputs, values: Tensor, config: TrainingConfig) -> Tensor:
    given: list[float] = numbers(values)
    found: list[float] = []
    for row in inputs.rows:
        own = given[row.start : row.start + len(row.targets)]
        found += generalized_advantages(own, row.reward, config.discount, config.trace)
    return torch.tensor(found, dtype=torch.float32, device=inputs.device)
