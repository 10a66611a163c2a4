"""What a worker's pool expects of the orders that its run says are coming.

What the run says replaces what it said before, and an order that is given takes what was expected
of it along. So nothing stays expected of orders that never come.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable

from plimsoll.core.errors import PlimsollError
from plimsoll.runs.pooling import PoolHints
from plimsoll.runs.tickets import Ticket
from plimsoll.sandboxes.pool.background_tasks import BackgroundTasks
from plimsoll.sandboxes.pool.demand import Expectation
from plimsoll.tasks.task import Task
from plimsoll.workers.place import Coming, Kind, Order

__all__ = ["Forecast"]

Load = Callable[[Kind], Awaitable[Task]]


class Forecast:
    """`load` reads the task of a kind, beside the loop."""

    def __init__(self, hints: PoolHints, load: Load, on_fault: Callable[[str], None]) -> None:
        self._hints = hints
        self._load = load
        self._coming = Counter[Kind]()
        """Orders that are still to be given."""
        self._tasks: dict[Kind, Task] = {}
        """Of those, as far as they are read."""
        self._expected: dict[Kind, deque[Expectation]] = {}
        self._own: dict[str, Expectation] = {}
        """Of tickets that run."""
        self._reading = BackgroundTasks(on_fault)

    def tell(self, coming: Iterable[Coming]) -> None:
        self._coming = Counter({one.kind: one.count for one in coming})
        self._tasks = {kind: task for kind, task in self._tasks.items() if kind in self._coming}
        self._settle()
        if not self._reading and not self._tasks.keys() >= self._coming.keys():
            self._reading.start(self._read())

    def begin(self, order: Order) -> None:
        """An order was given: it is not among those that come any more."""
        kind = order.kind
        if self._coming[kind]:
            self._coming[kind] -= 1
        if expected := self._alive(kind):
            own = self._own[order.ticket] = expected.popleft()
            self._hints.claim(own, Ticket(self._tasks[kind], order.attempt, order.agent))
            self._expected[kind] = expected

    def read(self, order: Order, task: Task) -> None:
        """The task of an order that was given is read. One that nobody said was coming is
        expected all the same, or it would take what is expected of others."""
        if order.ticket not in self._own:
            own = self._hints.expect(Ticket(task, order.attempt, order.agent))
            if own is not None:
                self._own[order.ticket] = own

    def over(self, order: Order) -> None:
        """An order has come to its end, whether it asked for a sandbox or not."""
        if (own := self._own.pop(order.ticket, None)) is not None:
            own.withdraw()

    async def close(self) -> None:
        self.tell(())
        self._reading.cancel()
        await self._reading.wait_all()

    async def _read(self) -> None:
        """Read what is not known of the tasks that come."""
        bad: set[Kind] = set()
        while unread := self._coming.keys() - self._tasks.keys() - bad:
            kind = next(kind for kind in self._coming if kind in unread)
            try:
                task = await self._load(kind)
            except PlimsollError:
                bad.add(kind)  # Its own trial says so.
                continue
            if kind in self._coming:
                self._tasks[kind] = task
                self._settle()

    def _settle(self) -> None:
        """Have the pool expect what comes, and nothing else."""
        # More first: what is no longer expected of one task may be just what another wants.
        for kind, task in self._tasks.items():
            self._expect(kind, task)
        for kind, expected in list(self._expected.items()):
            while len(expected) > self._coming[kind]:
                expected.pop().withdraw()
            if not expected:
                del self._expected[kind]

    def _expect(self, kind: Kind, task: Task) -> None:
        expected = self._alive(kind)
        for _ in range(self._coming[kind] - len(expected)):
            made = self._hints.expect(Ticket(task, 0, kind.agent))
            if made is None:
                break
            expected.append(made)
        self._expected[kind] = expected

    def _alive(self, kind: Kind) -> deque[Expectation]:
        """What is expected of orders of a kind, without what others were given: the sandbox of
        another task may be just the same."""
        return deque(one for one in self._expected.get(kind, ()) if one.remaining)
