"""What the trainer asks of whoever learns: one process, or several that share the work."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from plimsoll.training.metrics.step_metrics import StepReport
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.samples import TrainingSample

__all__ = ["LearnerProtocol"]


class LearnerProtocol(Protocol):
    @property
    def bad_steps(self) -> int:
        """Steps in a row that had no finite loss and gradient."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether its weights are of whole steps, and not of one that raised in the middle."""
        ...

    def step(self, items: Sequence[TrainingSample]) -> StepReport: ...

    def weights(self) -> Weights: ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...
