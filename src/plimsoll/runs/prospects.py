"""Which trials come next, as far as a run's ledger can tell before it has admitted them."""

import itertools
from collections.abc import Iterable, Iterator, Mapping

from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.breaker.monitor import BreakerMonitor
from plimsoll.runs.evaluation.held_out import HeldOutEvaluations
from plimsoll.runs.plan import Plan
from plimsoll.runs.tickets import CANARY_AGENT
from plimsoll.tasks.task import Task
from plimsoll.workers.place import Kind

__all__ = ["Prospects"]


class Prospects:
    """Looks at the books, and changes nothing."""

    def __init__(
        self,
        plan: Plan,
        order: DataOrder,
        ledger: Ledger,
        evaluations: HeldOutEvaluations,
        watching: BreakerMonitor,
    ) -> None:
        self._plan = plan
        self._order = order
        self._ledger = ledger
        self._evaluations = evaluations
        self._watching = watching

    def next(self, waiting: Iterable[str], places: int, *, trains: bool) -> list[Kind]:
        """What comes, the first one first, and no more than there are places for.

        `waiting` are tickets that were admitted and not given out. `trains`: more of training is
        admitted.
        """
        most = min(places, self._plan.settings.max_running)
        held_out = self._plan.held_out.tasks
        ways = [self._of(waiting), (_kind(held_out, task) for task in self._evaluations.coming)]
        if trains:
            ways.append(self._prompts())
        kinds = list(itertools.islice(itertools.chain.from_iterable(ways), most))
        canaries = self._watching.canaries
        if trains and canaries is not None:
            name = canaries.due_within(len(kinds))
            if name is not None:
                kinds = [_kind(self._plan.tasks, name, CANARY_AGENT), *kinds][:most]
        return kinds

    def _of(self, tickets: Iterable[str]) -> Iterator[Kind]:
        books = self._ledger.books
        for ticket in tickets:
            if (found := books.find(ticket)) is not None:
                evaluated = found[0].id in books.evals
                tasks = self._plan.held_out.tasks if evaluated else self._plan.tasks
                yield _kind(tasks, found[0].task)

    def _prompts(self) -> Iterator[Kind]:
        """Of groups that will be admitted, as many as the steps that are left can use."""
        books, settings = self._ledger.books, self._plan.settings
        steps = self._plan.steps
        usable = None
        if steps is not None:
            left = (steps - books.version.number) * settings.batch_groups
            usable = max(0, left - books.live)
        known = (task for task in self._names() if task not in books.quarantined)
        for task in itertools.islice(known, usable):
            yield from itertools.repeat(_kind(self._plan.tasks, task), settings.group_size)

    def _names(self) -> Iterator[str]:
        """The tasks of prompts that come again, then of new ones."""
        books = self._ledger.books
        again = sorted(books.pending.values(), key=lambda one: (one.after, one.prompt))
        yield from (one.task for one in again if one.after <= books.next_prompt)
        if self._order.is_empty_without(books.quarantined.keys()):
            return
        yield from self._order.coming(books.epoch)


def _kind(tasks: Mapping[str, Task], name: str, agent: str = "") -> Kind:
    return Kind(str(tasks[name].path), name, agent)
