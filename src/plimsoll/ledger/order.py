"""The order of the data: which task a prompt's number stands for."""

import functools
import random
from collections.abc import Sequence, Set

from plimsoll.core.errors import UsageError

__all__ = ["DataOrder"]


class DataOrder:
    """Every task once an epoch, each epoch shuffled anew; a pure function of tasks and seed.

    Nothing of it need be saved: the ledger knows the next prompt's number.
    """

    def __init__(self, tasks: Sequence[str], *, seed: int = 0, epochs: int | None = None) -> None:
        if not tasks:
            raise UsageError("there are no tasks to train on")
        self.tasks = tuple(tasks)
        self._names = frozenset(tasks)
        self._seed = seed
        self._epochs = epochs
        self._epoch = functools.lru_cache(maxsize=4)(self._shuffle)

    def task(self, prompt: int) -> str | None:
        """The task of a prompt; None after the last epoch."""
        epoch, place = divmod(prompt, len(self.tasks))
        if self._epochs is not None and epoch >= self._epochs:
            return None
        return self._epoch(epoch)[place]

    def is_empty_without(self, tasks: Set[str]) -> bool:
        """Whether these are all the tasks there are."""
        return len(tasks) >= len(self._names) and tasks >= self._names

    def _shuffle(self, epoch: int) -> tuple[str, ...]:
        tasks = list(self.tasks)
        random.Random(f"{self._seed}:{epoch}").shuffle(tasks)
        return tuple(tasks)
