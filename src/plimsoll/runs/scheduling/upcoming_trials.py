"""The upcoming trials of a run, for prewarming."""

import itertools
from collections.abc import Iterable, Iterator, Mapping

from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.breaker.breaker import BreakerMonitor
from plimsoll.runs.breaker.canaries import CANARY_AGENT
from plimsoll.runs.plan import Plan
from plimsoll.runs.scheduling.trial_set import TrialSets
from plimsoll.tasks.task import Task
from plimsoll.workers.messages import Kind

__all__ = ["UpcomingTrials"]


class UpcomingTrials:
    """The next trials, as far as the ledger determines them. Reads the books and changes
    nothing."""

    def __init__(
        self,
        plan: Plan,
        order: DataOrder | None,
        ledger: Ledger,
        sets: TrialSets,
        monitor: BreakerMonitor,
    ) -> None:
        self._plan = plan
        self._order = order
        self._ledger = ledger
        self._sets = sets
        self._monitor = monitor

    def next(self, waiting: Iterable[str], slots: int, *, is_stopped: bool) -> list[Kind]:
        """The next trials in order, at most one per slot.

        `waiting` are admitted tickets without a worker. `is_stopped`: no more training trials and
        canaries are started.
        """
        most = min(slots, self._plan.settings.max_running)
        ways = [self._of(waiting), self._sets.upcoming]
        if self._order is not None and not is_stopped:
            ways.append(self._prompts(self._order))
        kinds = list(itertools.islice(itertools.chain.from_iterable(ways), most))
        canaries = self._monitor.canaries
        if canaries is not None and not is_stopped:
            name = canaries.due_within(len(kinds))
            if name is not None:
                kinds = [_kind(self._plan.tasks, name, CANARY_AGENT), *kinds][:most]
        return kinds

    def _of(self, tickets: Iterable[str]) -> Iterator[Kind]:
        books = self._ledger.books
        for ticket in tickets:
            if (found := books.find(ticket)) is None:
                continue
            if (trial_set := self._sets.of(found[0].id)) is not None:
                yield trial_set.group_of(found[0]).kind
            elif found[0].id in books.groups:
                yield _kind(self._plan.tasks, found[0].task)

    def _prompts(self, order: DataOrder) -> Iterator[Kind]:
        """Trials of groups that will be admitted, as many as the remaining steps can use."""
        books, settings = self._ledger.books, self._plan.settings
        steps = self._plan.steps
        usable = None
        if steps is not None:
            left = (steps - books.version.number) * settings.batch_groups
            usable = max(0, left - books.live)
        candidates = (task for task in self._names(order) if task not in books.quarantined)
        for task in itertools.islice(candidates, usable):
            yield from itertools.repeat(_kind(self._plan.tasks, task), settings.group_size)

    def _names(self, order: DataOrder) -> Iterator[str]:
        """The tasks of requeued prompts, then of new ones."""
        books = self._ledger.books
        again = sorted(books.pending.values(), key=lambda one: (one.after, one.prompt))
        yield from (one.task for one in again if one.after <= books.next_prompt)
        if order.is_empty_without(books.quarantined.keys()):
            return
        yield from order.upcoming(books.epoch)


def _kind(tasks: Mapping[str, Task], name: str, agent: str = "") -> Kind:
    return Kind(str(tasks[name].path), name, agent)
