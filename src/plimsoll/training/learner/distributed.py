"""A learner on several ranks, of which the first alone is told what to do.

    if world().rank:
        follow(Learner(...))  # returns when the first rank closes
    else:
        learner = SharedLearner(Learner(...))

The first rank says each command to the others before it does its own share. What would fail on
all of them is found out before that, so that an error in the middle of a command means that
ranks do not agree any more: then all of them end.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from plimsoll.core.errors import TrainingError
from plimsoll.training.learner.learner import Learner
from plimsoll.training.learner.ranks import CommandChannel, leave, world
from plimsoll.training.metrics.step_metrics import StepReport
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.samples import TrainingSample

__all__ = ["DistributedLearner", "execute_commands"]


@dataclass(frozen=True, slots=True)
class _Command:
    name: Literal["step", "weights", "save", "load", "end"]
    items: Sequence[TrainingSample] = ()
    folder: Path = Path()
    """Where to load from; where to save is for the rank that writes."""


class DistributedLearner:
    """What the first rank has. In a process alone it is the learner, and no more."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._line = CommandChannel()
        self._agree = True

    @property
    def bad_steps(self) -> int:
        return self._learner.bad_steps

    @property
    def is_whole(self) -> bool:
        return self._learner.is_whole

    @property
    def parameters(self) -> int:
        return self._learner.parameters

    def step(self, items: Sequence[TrainingSample]) -> StepReport:
        self._learner.check(items)
        with self._agreeing():
            self._line.broadcast(_Command("step", items=items))
            return self._learner.step(items)

    def weights(self) -> Weights:
        with self._agreeing():
            self._line.broadcast(_Command("weights"))
            return self._learner.weights()

    def save(self, folder: Path) -> None:
        """Raises what writers raise for a disk that is full: the ranks agree all the same."""
        with self._agreeing():
            self._line.broadcast(_Command("save"))
            gathered = self._learner.gather()
        self._learner.write(gathered, folder)

    def load(self, folder: Path) -> None:
        with self._agreeing():
            self._line.broadcast(_Command("load", folder=folder))
            self._learner.load(folder)

    def close(self) -> None:
        """Sends the other ranks home; where they wait for something else, by an error."""
        if self._agree:
            with suppress(RuntimeError):  # one of them has died
                self._line.broadcast(_Command("end"))
        leave()

    @contextmanager
    def _agreeing(self) -> Generator[None]:
        if not self._agree and world().size > 1:
            # The others are in the middle of something else: they would not answer for long.
            raise TrainingError("the ranks that train together do not agree any more")
        try:
            yield
        except RuntimeError as error:
            self._agree = False
            if world().size == 1:
                raise
            raise TrainingError(
                f"the ranks that train together lost each other: {error}. "
                "What the others printed last says why"
            ) from error
        except Exception:
            self._agree = False
            raise


def execute_commands(learner: Learner) -> None:
    """Does what the first rank says, until it closes."""
    line = CommandChannel()
    while True:
        command = cast(_Command, line.broadcast(None))
        if command.name == "step":
            learner.step(command.items)
        elif command.name == "weights":
            learner.weights()
        elif command.name == "save":
            learner.gather()
        elif command.name == "load":
            learner.load(command.folder)
        else:
            leave()
            return
