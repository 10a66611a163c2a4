"""Data order: the task whose turn is next, derived from the turns so far."""

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence, Set

from plimsoll.core.errors import UsageError

__all__ = ["DataOrder", "Epoch"]


class Epoch:
    """The tasks that have had their turn in the current epoch; derived from the events.

    A second turn of a task begins the next epoch.
    """

    def __init__(self, number: int = 0, begun: Iterable[str] = ()) -> None:
        self.number = number
        self.begun: set[str] = set(begun)
        """Never shrunk: the next epoch has its own set."""

    def take(self, task: str) -> None:
        """Record the turn of a task."""
        if task in self.begun:
            self.number += 1
            self.begun = set()
        self.begun.add(task)


class DataOrder:
    """Every task once an epoch, each epoch in another order: a pure function of tasks and seed.

    Nothing needs to be saved: the ledger records the turns. So tasks and the seed may change in the
    middle of an epoch; every present task has one turn in it.
    """

    def __init__(self, tasks: Sequence[str], *, seed: int = 0, epochs: int | None = None) -> None:
        if not tasks:
            raise UsageError("there are no tasks to train on")
        self._tasks = frozenset(tasks)
        self._seed = seed
        self._epochs = epochs
        self._begun: Set[str] = frozenset()
        self._position = 0
        """All tasks of the epoch before this position are in `_begun`: they had their turn."""
        self.epoch = functools.lru_cache(maxsize=4)(self._order)
        """All tasks, in the order of the epoch with this number."""

    def next_task(self, epoch: Epoch) -> str | None:
        """The task whose turn is next; None after the last epoch."""
        left = self._left(epoch)
        number = epoch.number if left is not None else epoch.number + 1
        if self._is_over(number):
            return None
        return left if left is not None else self.epoch(number)[0]

    def upcoming(self, epoch: Epoch) -> Iterator[str]:
        """The tasks of all turns from the next one on, if nothing changes."""
        if self._left(epoch) is not None and not self._is_over(epoch.number):
            rest = itertools.islice(self.epoch(epoch.number), self._position, None)
            yield from (task for task in rest if task not in epoch.begun)
        for number in itertools.count(epoch.number + 1):
            if self._is_over(number):
                return
            yield from self.epoch(number)

    def is_empty_without(self, tasks: Set[str]) -> bool:
        """Whether no task is left without these."""
        return len(tasks) >= len(self._tasks) and tasks >= self._tasks

    def _is_over(self, epoch: int) -> bool:
        return self._epochs is not None and epoch >= self._epochs

    def _left(self, epoch: Epoch) -> str | None:
        """The first task that has not had its turn."""
        order = self.epoch(epoch.number)
        if self._begun is not epoch.begun:
            self._begun, self._position = epoch.begun, 0
        while self._position < len(order) and order[self._position] in epoch.begun:
            self._position += 1
        return order[self._position] if self._position < len(order) else None

    def _order(self, epoch: int) -> tuple[str, ...]:
        # By a digest of each name alone: adding or removing a task moves no other.
        def sort_key(task: str) -> bytes:
            return hashlib.blake2b(f"{self._seed}:{epoch}:{task}".encode()).digest()

        return tuple(sorted(self._tasks, key=sort_key))
