"""Prewarming: sandboxes started before their trials.

The controller announces the next orders to each worker. Each announcement replaces the previous
one, and an order that arrives takes over the sandbox expected for it. So no sandbox stays reserved
for an order that never comes.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from plimsoll.agents.protocol import Agent
from plimsoll.core.errors import PlimsollError
from plimsoll.sandboxes.pool.background_tasks import BackgroundTasks
from plimsoll.sandboxes.pool.demand import Expectation
from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.task import Task
from plimsoll.trials.sandbox_request import agent_sandbox, labels_for
from plimsoll.workers.messages import Kind, Order

__all__ = ["Prewarming"]

FindAgent = Callable[[str], Agent]
LoadTask = Callable[[Kind], Awaitable[Task]]


class Prewarming:
    """Keeps a pool's expectations equal to the orders that are announced or running."""

    def __init__(
        self,
        pool: Pool,
        run: str,
        assets: StagedAssets | None,
        find_agent: FindAgent,
        load_task: LoadTask,
    ) -> None:
        self._pool = pool
        self._is_off = pool.options.reuse is Reuse.NONE
        self._run = run
        self._assets = assets
        self._find_agent = find_agent
        self._load_task = load_task
        self._upcoming = Counter[Kind]()
        """Announced orders that have not arrived."""
        self._tasks: dict[Kind, Task] = {}
        """The loaded tasks of announced kinds."""
        self._announced: dict[Kind, list[Expectation]] = {}
        """Expectations of announced orders."""
        self._own: dict[str, Expectation] = {}
        """Expectations of running tickets."""
        self._loading = BackgroundTasks(pool.warn)

    def expect(self, kinds: Iterable[Kind]) -> None:
        """Announce the next orders. Replaces the previous announcement."""
        if self._is_off:
            return
        self._upcoming = Counter(kinds)
        self._tasks = {kind: task for kind, task in self._tasks.items() if kind in self._upcoming}
        self._settle()
        if not self._loading and not self._tasks.keys() >= self._upcoming.keys():
            self._loading.start(self._load())

    async def begin(self, order: Order) -> Task:
        """Load the task of an order that has arrived. Its sandbox is expected until `over`."""
        kind = order.kind
        # Before the first await: the next announcement does not include this order.
        if self._upcoming[kind]:
            self._upcoming[kind] -= 1
        if announced := self._unused(kind):
            own = self._own[order.ticket] = announced.pop(0)
            own.claim(labels_for(self._tasks[kind], self._run, order.attempt))
            self._announced[kind] = announced
        task = await self._load_task(kind)
        # An order that was not announced is expected too, or its request would use up the
        # expectation of another.
        if order.ticket not in self._own and (own := self._expect(task, order.attempt, kind.agent)):
            self._own[order.ticket] = own
        return task

    def over(self, order: Order) -> None:
        """Record that an order has ended, with or without a request for a sandbox."""
        if (own := self._own.pop(order.ticket, None)) is not None:
            own.withdraw()

    async def close(self) -> None:
        self.expect(())
        self._loading.cancel()
        await self._loading.wait_all()

    async def _load(self) -> None:
        """Load the tasks of announced orders, in the order of the announcement."""
        bad: set[Kind] = set()
        while missing := self._upcoming.keys() - self._tasks.keys() - bad:
            kind = next(kind for kind in self._upcoming if kind in missing)
            try:
                task = await self._load_task(kind)
            except PlimsollError:
                bad.add(kind)  # its own trial reports it
                continue
            if kind in self._upcoming:
                self._tasks[kind] = task
                self._settle()

    def _settle(self) -> None:
        """Make the expectations match the announcement."""
        # Additions first: the sandbox of a withdrawn expectation may serve a new one.
        for kind, task in self._tasks.items():
            announced = self._announced[kind] = self._unused(kind)
            while len(announced) < self._upcoming[kind]:
                if (one := self._expect(task, 0, kind.agent)) is None:
                    break
                announced.append(one)
        for kind, announced in list(self._announced.items()):
            while len(announced) > self._upcoming[kind]:
                announced.pop().withdraw()
            if not announced:
                del self._announced[kind]

    def _expect(self, task: Task, attempt: int, agent: str) -> Expectation | None:
        """Expect the sandbox of a trial; None without prewarming, or if it has no spec."""
        if self._is_off:
            return None
        try:
            mounts = self._find_agent(agent).mounts
            labels = labels_for(task, self._run, attempt)
            request = agent_sandbox(task, labels, self._assets, mounts)
        except PlimsollError:
            return None  # its own trial reports it
        return self._pool.expect(request.source, request.spec)

    def _unused(self, kind: Kind) -> list[Expectation]:
        """The expectations of announced orders that no lease has used. A trial of another task
        with the same sandbox may have used some."""
        return [one for one in self._announced.get(kind, ()) if one.remaining]
