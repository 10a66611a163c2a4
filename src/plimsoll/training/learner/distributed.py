"""A learner on several ranks, controlled by the first one.

    if world().rank:
        execute_commands(Learner(...))  # returns when the first rank closes
    else:
        learner = DistributedLearner(Learner(...))

The first rank broadcasts each command before it executes its own share. Errors that would occur on
every rank are checked before the broadcast. An error during a command therefore means that the
ranks are out of sync, and all of them end.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from plimsoll.core.errors import TrainingError
from plimsoll.runs.files.steps import StepReport
from plimsoll.training.learner.learner import Learner
from plimsoll.training.learner.ranks import CommandChannel, leave, world
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.samples import TrainingSample

__all__ = ["DistributedLearner", "execute_commands"]


@dataclass(frozen=True, slots=True)
class _Command:
    name: Literal["step", "weights", "save", "load", "end"]
    samples: Sequence[TrainingSample] = ()
    folder: Path = Path()
    """The folder to load from. Only the writing rank needs the folder to save to."""


class DistributedLearner:
    """The learner of the first rank. In a single process it only forwards."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._channel = CommandChannel()
        self._in_sync = True

    @property
    def bad_steps(self) -> int:
        return self._learner.bad_steps

    @property
    def is_whole(self) -> bool:
        return self._learner.is_whole

    @property
    def parameters(self) -> int:
        return self._learner.parameters

    def step(self, samples: Sequence[TrainingSample]) -> StepReport:
        self._learner.check(samples)
        with self._synchronized():
            self._channel.broadcast(_Command("step", samples=samples))
            return self._learner.step(samples)

    def weights(self) -> Weights:
        with self._synchronized():
            self._channel.broadcast(_Command("weights"))
            return self._learner.weights()

    def save(self, folder: Path) -> None:
        """Raises the writers' error for a full disk; the ranks stay in sync."""
        with self._synchronized():
            self._channel.broadcast(_Command("save"))
            gathered = self._learner.gather()
        self._learner.write(gathered, folder)

    def load(self, folder: Path) -> None:
        with self._synchronized():
            self._channel.broadcast(_Command("load", folder=folder))
            self._learner.load(folder)

    def close(self) -> None:
        """End the other ranks: by a command, or by an error if they wait for something else."""
        if self._in_sync:
            with suppress(RuntimeError):  # one of them has died
                self._channel.broadcast(_Command("end"))
        leave()

    @contextmanager
    def _synchronized(self) -> Generator[None]:
        if not self._in_sync and world().size > 1:
            # The others are in the middle of another command and would not answer.
            raise TrainingError("the training ranks are out of sync")
        try:
            yield
        except RuntimeError as error:
            self._in_sync = False
            if world().size == 1:
                raise
            raise TrainingError(
                f"the training ranks lost their connection: {error}. "
                "See the last output of the other ranks"
            ) from error
        except Exception:
            self._in_sync = False
            raise


def execute_commands(learner: Learner) -> None:
    """Execute the commands of the first rank until it closes."""
    channel = CommandChannel()
    while True:
        command = cast(_Command, channel.broadcast(None))
        if command.name == "step":
            learner.step(command.samples)
        elif command.name == "weights":
            learner.weights()
        elif command.name == "save":
            learner.gather()
        elif command.name == "load":
            learner.load(command.folder)
        else:
            leave()
            return
