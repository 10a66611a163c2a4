"""AdamW with gradient clipping and a state that can be saved; the learning rate schedule."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plimsoll.config.training import TrainingConfig
from plimsoll.core.errors import TrainingError, UsageError
from plimsoll.training.learner.ranks import full_tensor, gather_on_first, sharded_like
from plimsoll.training.learner.torch_calls import step
from plimsoll.training.models import is_out_of_memory

__all__ = ["Optimizer", "Schedule", "make_schedule"]


class Optimizer:
    """Updates the weights of a module."""

    def __init__(
        self, module: nn.Module, *, rate: float, weight_decay: float, clip_gradient: float
    ) -> None:
        self._rate = rate
        self._clip = clip_gradient
        self._parameters = {
            name: each for name, each in module.named_parameters() if each.requires_grad
        }
        # Scales and offsets get no weight decay.
        wide = [each for each in self._parameters.values() if each.dim() > 1]
        narrow = [each for each in self._parameters.values() if each.dim() <= 1]
        groups = [
            {"params": wide, "weight_decay": weight_decay},
            {"params": narrow, "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW([each for each in groups if each["params"]], lr=rate)

    def clear(self) -> None:
        """Drop the gradient."""
        self._adam.zero_grad(set_to_none=True)

    def clip(self) -> float:
        """Clip the gradient and return its norm before that."""
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self._clip)
        return float(full_tensor(norm))

    def step(self, share: float) -> None:
        """Make one update with a share of the learning rate."""
        for group in self._adam.param_groups:
            group["lr"] = self._rate * share
        try:
            step(self._adam)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                "out of memory: the optimizer state, two numbers for each weight, does not fit "
                "beside the model. Use a smaller model, or train on more GPUs with torchrun"
            ) from error
        self.clear()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """The state by parameter name, gathered on the first rank. Collective."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self._parameters.items():
            state: Mapping[str, Tensor] = self._adam.state[parameter]
            found[name] = {key: gather_on_first(value) for key, value in state.items()}
        return found

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore a state of `state`, on any number of ranks."""
        for name, parameter in self._parameters.items():
            # Moments are sharded like the parameter; the step count is a scalar.
            self._adam.state[parameter] = {
                key: sharded_like(value.to(parameter.device), parameter) if value.dim() else value
                for key, value in state[name].items()
            }


@dataclass(frozen=True, slots=True)
class Schedule:
    """The share of the learning rate for each step. It is never 0."""

    shape: str
    warmup: int
    final: float
    steps: int | None

    def __call__(self, step: int) -> float:
        """The share for a step, counted from 1."""
        if step <= self.warmup:
            return step / self.warmup
        if self.steps is None or self.shape == "constant":
            return 1.0
        # The first step after the warm-up has share 1. The step after the last one would have
        # `final`: with a final rate of 0 the last step still learns.
        length = self.steps - self.warmup
        progress = min(step - self.warmup - 1, length - 1) / length
        left = 1 - progress if self.shape == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.final + (1 - self.final) * left


def make_schedule(config: TrainingConfig, steps: int | None) -> Schedule:
    """The schedule of a config. Raises `UsageError` for one that cannot work."""
    if steps is None and config.schedule != "constant":
        raise UsageError(
            f'[training] schedule = "{config.schedule}" needs the number of steps: '
            'set [run] steps, or schedule = "constant"'
        )
    if steps is not None and config.warmup_steps >= steps:
        raise UsageError(
            f"[training] warmup_steps = {config.warmup_steps}, but the run has {steps} steps: the "
            "learning rate would never reach its value; set fewer"
        )
    return Schedule(config.schedule, config.warmup_steps, config.final_rate, steps)
