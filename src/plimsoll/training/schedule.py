"""How the learning rate goes over the steps of a run. No step of it has a rate of 0."""

import math
from dataclasses import dataclass

from plimsoll.core.errors import UsageError
from plimsoll.runs.training_config import TrainingConfig

__all__ = ["Schedule", "make_schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The share of the learning rate that a step has."""

    shape: str
    warmup: int
    final: float
    steps: int | None

    def __call__(self, step: int) -> float:
        """For the step of this number, counted from 1."""
        if step <= self.warmup:
            return step / self.warmup
        if self.steps is None or self.shape == "constant":
            return 1.0
        # The first step after the warm-up has all of it, and `final` would be that of the step
        # after the last: with a final rate of 0 the last still learns.
        length = self.steps - self.warmup
        progress = min(step - self.warmup - 1, length - 1) / length
        left = 1 - progress if self.shape == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.final + (1 - self.final) * left


def make_schedule(config: TrainingConfig, steps: int | None) -> Schedule:
    """Refuses a schedule that could not do what it says."""
    if steps is None and config.schedule != "constant":
        raise UsageError(
            f'[training] schedule = "{config.schedule}" goes over the steps of the run: '
            'set [run] steps, or schedule = "constant"'
        )
    if steps is not None and config.warmup_steps >= steps:
        raise UsageError(
            f"[training] warmup_steps = {config.warmup_steps}, but the run has {steps} steps: the "
            "learning rate would never reach its value; set fewer"
        )
    return Schedule(config.schedule, config.warmup_steps, config.final_rate, steps)
