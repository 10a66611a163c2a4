"""The controller of a run: tickets from the ledger to workers, and what came of them back.

Invariants:

* What runs is in the ledger before it is sent, and what came of it before it is forgotten.
* The ledger alone says how much may run: here nothing is counted, and nothing is restored.
* Stopped, it sends nothing more; what runs has its grace, and is void and cancelled after it.
* In memory is what is live: a group that was trained on or given up leaves nothing here.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from plimsoll.core.errors import LedgerError, PlimsollError
from plimsoll.core.versions import Version
from plimsoll.ledger.batching import Batch as ChosenBatch
from plimsoll.ledger.group import split_ticket
from plimsoll.ledger.ledger import Ledger
from plimsoll.runs.batches import Batch
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.evaluation import first_error
from plimsoll.runs.kept import Kept, attempt_of
from plimsoll.runs.plan import Plan
from plimsoll.runs.results import Row, row_of, voided
from plimsoll.runs.slack import Slack
from plimsoll.runs.tickets import CANARY_AGENT
from plimsoll.runs.watching import Canary, Watching
from plimsoll.trials.trial import TrialResult
from plimsoll.trials.verdicts import Cause, Graded
from plimsoll.workers.place import Order, Result
from plimsoll.workers.supervisor import Supervisor

__all__ = ["Controller"]

_TURN_SECONDS = 0.25
"""The longest between two looks at what can be done."""

_Keep = Callable[[Result], Awaitable[None]]


class Controller:
    """Drives one run. `run` is its loop; a trainer asks for batches beside it."""

    def __init__(
        self,
        plan: Plan,
        directory: RunDirectory,
        ledger: Ledger,
        supervisor: Supervisor,
        watching: Watching,
        kept: Kept,
        name: str,
    ) -> None:
        self.why = ""
        """Why nothing is started any more; empty while the run goes on."""
        self.is_done = False
        """Whether that is the end of its steps or of its epochs."""
        self.finished = 0
        """Trials that came to their end since the controller was made."""
        self._has_begun = False
        self._plan = plan
        self._order = plan.order()
        self._directory = directory
        self._ledger = ledger
        self._supervisor = supervisor
        self._watching = watching
        self._kept = kept
        self._name = name
        """Who takes tickets, in the ledger's words: workers live and die with it."""
        self._tasks = asyncio.TaskGroup()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()
        self._groups: set[str] = set()
        """Groups that workers may hold something of."""
        self._slack = Slack(plan.config.run.slack_seconds)
        self._changed = asyncio.Event()
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def state(self) -> str:
        if self.why:
            return "stopping"
        return "running" if self._has_begun else "starting"

    async def run(self) -> None:
        """Go on until it is cancelled. Raises why the run cannot go on."""
        self._has_begun = True
        try:
            async with self._tasks:
                self._tasks.create_task(self._supervisor.failed())
                while True:
                    await self._turn()
                    self._tell()
                    await self._wait()
        except* PlimsollError as errors:
            raise first_error(errors) from None

    def stop(self, why: str, *, is_done: bool = False) -> None:
        """Start nothing more."""
        if not self.why:
            self.why, self.is_done = why, is_done
            self._changed.set()

    async def drain(self, grace: float) -> None:
        """Let what runs come to its end for so long, and end the workers."""
        self.stop("it was stopped")
        await self._supervisor.drain(grace)
        if self._running:
            await asyncio.wait(self._running.values())

    async def next_batch(self, loop: "asyncio.Task[None]") -> Batch | None:
        """The next batch, which is being trained on from here on; None after the last.

        `loop` is the task of `run`: what ends it ends this.
        """
        if self._ledger.books.is_training:
            raise LedgerError("the batch before is not committed: commit it, then ask for another")
        while not self.why:
            choice = self._ledger.choose()
            if isinstance(choice, ChosenBatch):
                await self._ledger.consume(choice)
                return self._kept.batch(choice.groups, self._ledger.books)
            await asyncio.wait({loop, self._news}, return_when=asyncio.FIRST_COMPLETED)
            if loop.done():
                loop.result()
        return None

    async def commit(self, checkpoint: str) -> Version:
        """The step is done: what it used is forgotten, and workers hear of the version."""
        version = await self._ledger.commit(checkpoint)
        self._supervisor.set_version(version)
        self._see_end()
        self._changed.set()
        return version

    async def _turn(self) -> None:
        """Do all that can be done now."""
        if self._watching.breaker.tripped:
            self.stop("the breaker tripped")
        self._see_end()
        self._let_go()
        if not self.why:
            await self._ledger.admit(self._order, self._most())
            await self._start()
            await self._slack.attend(self._ledger, asyncio.get_running_loop().time())
            self._see_exhausted()

    def _tell(self) -> None:
        """Wake whoever waits for a batch: one may be possible now."""
        told, self._news = self._news, asyncio.get_running_loop().create_future()
        told.set_result(None)

    async def _wait(self) -> None:
        """Until something has changed, or a slack is over."""
        left = self._slack.soonest - asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_TURN_SECONDS, max(0.0, left))):
                await self._changed.wait()
        self._changed.clear()

    def _see_end(self) -> None:
        steps = self._plan.steps
        if steps is not None and self._ledger.books.version.number >= steps:
            self.stop("all steps are done", is_done=True)

    def _see_exhausted(self) -> None:
        """End where no batch can come any more."""
        books = self._ledger.books
        if self._running or books.running or books.is_training:
            return
        if isinstance(self._ledger.choose(), ChosenBatch):
            return
        if self._order.is_empty_without(books.quarantined.keys()):
            self.stop("every task is out: each was void too often")
        elif not books.pending and self._order.task(books.next_prompt) is None:
            self.stop("all epochs are done", is_done=True)

    def _most(self) -> int | None:
        """How many groups more the steps that are left can use."""
        if self._plan.steps is None:
            return None
        books = self._ledger.books
        steps = self._plan.steps - books.version.number
        return max(0, steps * self._plan.settings.batch_groups - books.live)

    def _let_go(self) -> None:
        """Have workers end and release what belongs to groups that are over."""
        books = self._ledger.books
        for ticket in self._running.keys() - self._cancelled:
            if split_ticket(ticket) is not None and books.find(ticket) is None:
                self._supervisor.cancel(ticket, "its group was given up")
                self._cancelled.add(ticket)
        over = {name for name in self._groups if (g := books.groups.get(name)) is None or g.final}
        for group in over:
            self._supervisor.group_over(group)
        self._groups -= over
        self._kept.forget(books)

    async def _start(self) -> None:
        """Give tickets to free places, those of the oldest group first."""
        free = self._supervisor.free
        while free > 0 and (canary := self._watching.due()) is not None:
            self._begin_canary(canary)
            free -= 1
        tickets = self._ledger.accounts.waiting()[: max(0, free)]
        started = await asyncio.gather(*(self._ledger.start(t, self._name) for t in tickets))
        for ticket, is_started in zip(tickets, started, strict=True):
            if is_started:
                self._begin(ticket)
        await asyncio.sleep(0)  # each reaches its worker before free places are counted again

    def _begin(self, ticket: str) -> None:
        found, parts = self._ledger.books.find(ticket), split_ticket(ticket)
        assert found is not None and parts is not None, f"{ticket} was started and is unknown"
        group, place = found[0], parts[1]
        self._watching.trial_started()
        self._groups.add(group.id)
        order = Order(
            ticket=ticket,
            group=group.id,
            task=str(self._plan.tasks[group.task].path),
            name=group.task,
            attempt=attempt_of(group, place),
            folder=str(self._directory.rollout(group.task, ticket).absolute()),
        )
        self._send(order, lambda result: self._keep(group.task, order, result))

    def _begin_canary(self, canary: Canary) -> None:
        task = self._plan.tasks[canary.task]
        order = Order(
            ticket=f"canary-{canary.number}",
            group=f"canary-{canary.number}",
            task=str(task.path),
            name=task.name,
            attempt=canary.number,
            folder=str(self._directory.canary(task.name, canary.number).absolute()),
            agent=CANARY_AGENT,
        )
        self._groups.add(order.group)
        self._send(order, lambda result: self._keep_canary(canary, order, result))

    def _send(self, order: Order, keep: _Keep) -> None:
        async def follow() -> None:
            try:
                await keep(await self._supervisor.run(order))
            finally:
                del self._running[order.ticket]
                self._cancelled.discard(order.ticket)
                self._changed.set()

        self._running[order.ticket] = self._tasks.create_task(follow())

    async def _keep(self, task: str, order: Order, result: Result) -> None:
        """A ticket has come to its end: note it, in the run's directory and in the ledger."""
        self.finished += 1
        if self._ledger.books.find(order.ticket) is None:
            return  # its group was given up meanwhile
        verdict = result.verdict
        if isinstance(verdict, Graded) and self._watching.doubt is not None:
            verdict = self._watching.doubt
        row = _row(task, order, result)
        if not isinstance(verdict, Graded):
            row = voided(row, verdict.cause, verdict.reason)
        # Given up by the run itself, it says nothing about the tasks, and is tried again.
        is_stopped = bool(self.why) and row.cause is Cause.CANCELLED
        self._kept.add(row)
        if not is_stopped:
            # Before anything is waited for: a canary that fails meanwhile has to know of it.
            self._watching.trial_finished(row)
        if isinstance(verdict, Graded):
            await self._ledger.finish(order.ticket, verdict, result.seconds, result.segments)
        else:
            await self._ledger.void(order.ticket, verdict, result.seconds, again=is_stopped)

    async def _keep_canary(self, canary: Canary, order: Order, result: Result) -> None:
        row = _row(canary.task, order, result)
        if row.cause in (Cause.CANCELLED, Cause.LOST):
            return  # it says nothing about the tasks
        self._directory.append_canary(row)
        doubtful = self._watching.canary_finished(canary, row)
        if (doubt := self._watching.doubt) is not None:
            # What is being trained on stays, and so do its rows.
            given_up = await self._ledger.distrust(doubtful, doubt)
            self._kept.void((t for t in doubtful if t.rpartition("/")[0] in given_up), doubt)


def _row(task: str, order: Order, result: Result) -> Row:
    trial = TrialResult(task, order.attempt, result.verdict, result.seconds, result.phases)
    return row_of(trial, agent=order.agent, ticket=order.ticket, trajectory=result.trajectory)
