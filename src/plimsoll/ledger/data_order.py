"""The order of the data: whose turn is next, by who has had it."""

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence, Set

from plimsoll.core.errors import UsageError

__all__ = ["DataOrder", "Epoch"]


class Epoch:
    """Which tasks have had their turn in the epoch under way; derived from the events.

    A task whose turn comes a second time begins the next epoch.
    """

    def __init__(self, number: int = 0, begun: Iterable[str] = ()) -> None:
        self.number = number
        self.begun: set[str] = set(begun)
        """Never made smaller: the next epoch has a set of its own."""

    def take(self, task: str) -> None:
        """A task has its turn."""
        if task in self.begun:
            self.number += 1
            self.begun = set()
        self.begun.add(task)


class DataOrder:
    """Every task once an epoch, each epoch in another order; a pure function of tasks and seed.

    Nothing of it need be saved: the ledger knows who has had a turn. So tasks may come and go,
    and the seed may change, in the middle of an epoch: whoever is there has one turn in it.
    """

    def __init__(self, tasks: Sequence[str], *, seed: int = 0, epochs: int | None = None) -> None:
        if not tasks:
            raise UsageError("there are no tasks to train on")
        self._tasks = frozenset(tasks)
        self._seed = seed
        self._epochs = epochs
        self._begun: Set[str] = frozenset()
        self._place = 0
        """Up to here all of the epoch are among `_begun`."""
        self.epoch = functools.lru_cache(maxsize=4)(self._order)
        """All tasks, in the order of the epoch with this number."""

    def next_task(self, epoch: Epoch) -> str | None:
        """The task whose turn is next; None after the last epoch."""
        left = self._left(epoch)
        number = epoch.number if left is not None else epoch.number + 1
        if self._is_over(number):
            return None
        return left if left is not None else self.epoch(number)[0]

    def coming(self, epoch: Epoch) -> Iterator[str]:
        """The tasks of all turns from the next one on, as things are."""
        if self._left(epoch) is not None and not self._is_over(epoch.number):
            rest = itertools.islice(self.epoch(epoch.number), self._place, None)
            yield from (task for task in rest if task not in epoch.begun)
        for number in itertools.count(epoch.number + 1):
            if self._is_over(number):
                return
            yield from self.epoch(number)

    def is_empty_without(self, tasks: Set[str]) -> bool:
        """Whether these are all the tasks there are."""
        return len(tasks) >= len(self._tasks) and tasks >= self._tasks

    def _is_over(self, epoch: int) -> bool:
        return self._epochs is not None and epoch >= self._epochs

    def _left(self, epoch: Epoch) -> str | None:
        """The first that has not had its turn."""
        order = self.epoch(epoch.number)
        if self._begun is not epoch.begun:
            self._begun, self._place = epoch.begun, 0
        while self._place < len(order) and order[self._place] in epoch.begun:
            self._place += 1
        return order[self._place] if self._place < len(order) else None

    def _order(self, epoch: int) -> tuple[str, ...]:
        # By a digest of each name alone: a task that comes or goes moves none of the others.
        def place(task: str) -> bytes:
            return hashlib.blake2b(f"{self._seed}:{epoch}:{task}".encode()).digest()

        return tuple(sorted(self._tasks, key=place))
