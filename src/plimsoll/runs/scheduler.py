"""The controller of a run: tickets from the ledger to workers, and what came of them back.

Invariants:

* What runs is in the ledger before it is sent, and what came of it before it is forgotten.
* The ledger alone says how much may run: here nothing is counted, and nothing is restored.
* Stopped, it sends nothing more; what runs has its grace, and is void and cancelled after it.
* In memory is what is live: a group that was trained on or given up leaves nothing here.
* A turn looks at what has changed since the last one, never at all that runs: it costs the same
  with ten running trials or ten thousand.
* Evaluations go before training, and go on when its steps are done.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from plimsoll.core.errors import LedgerError, PlimsollError
from plimsoll.core.stopwatch import Stopwatch
from plimsoll.core.versions import Version
from plimsoll.ledger.books.group import Group, split_ticket
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.rules.batching import Batch as ChosenBatch
from plimsoll.runs.batches import Batch
from plimsoll.runs.breaker.monitor import UNINFORMATIVE_CAUSES, BreakerMonitor, Canary
from plimsoll.runs.directory import RunDirectory, next_use
from plimsoll.runs.evaluation.eval_loop import first_error
from plimsoll.runs.evaluation.held_out import HeldOutEvaluation, HeldOutEvaluations, HeldOutResult
from plimsoll.runs.plan import Plan
from plimsoll.runs.pooling import reuse_of
from plimsoll.runs.prospects import Prospects
from plimsoll.runs.results import Row, row_of, voided
from plimsoll.runs.rollout_buffer import RolloutBuffer, attempt_of
from plimsoll.runs.straggler_clock import StragglerClock
from plimsoll.runs.tickets import CANARY_AGENT
from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.tasks.task import Task
from plimsoll.trajectories.trajectory_file import has_answers
from plimsoll.trials.trial import TrialResult
from plimsoll.trials.verdicts import Cause, Graded, Verdict, Void
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.place import Order, Result

__all__ = ["Scheduler"]

_TURN_SECONDS = 0.25
"""The longest between two looks at what can be done."""
_LOOK_SHARE = 0.05
_LOOK_SECONDS = 1.0
"""The largest share of time spent on looking ahead, and the longest interval between two looks."""

_Keep = Callable[[Result], Awaitable[None]]


class Scheduler:
    """Drives one run. `run` is its loop; a trainer asks for batches beside it."""

    def __init__(
        self,
        plan: Plan,
        directory: RunDirectory,
        ledger: Ledger,
        supervisor: Supervisor,
        watching: BreakerMonitor,
        kept: RolloutBuffer,
        name: str,
    ) -> None:
        self.why = ""
        """Why nothing is started any more; empty while the run goes on."""
        self.is_done = False
        """Whether that is the end of its steps or of its epochs."""
        self.finished = 0
        """Trials of training that came to their end since the controller was made."""
        self._has_begun = False
        self._is_halted = False
        """Nothing at all is started any more, of evaluations neither."""
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
        self._groups: set[str] = set()
        """Groups that workers may hold something of."""
        self._over: list[Group] = []
        """Groups that became final or left the books since the last turn."""
        ledger.books.on_over = self._over.append
        self._evaluations = HeldOutEvaluations(ledger)
        self._prospects: Prospects | None = None
        """None where workers start nothing ahead."""
        if reuse_of(plan.config) is not Reuse.NONE:
            self._prospects = Prospects(plan, self._order, ledger, self._evaluations, watching)
        self._look_at = -math.inf
        """The earliest time of the next look ahead, by the loop's clock."""
        self._told_of = 0
        """The number of slots at the last look ahead."""
        self._slack = StragglerClock(plan.config.run.slack_seconds)
        self._clock = Stopwatch()
        """Measures the slack of stragglers: it stands still while the policy is paused."""
        self._changed = asyncio.Event()
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def doing(self) -> str:
        """What goes on beside training; empty where nothing does."""
        return self._evaluations.doing

    @property
    def state(self) -> str:
        if self._is_halted or (self.why and not self._evaluations):
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
        """Start nothing more; at the end of the steps, nothing but evaluations."""
        if self.why and (is_done or self._is_halted):
            return  # it is said again at every turn
        if not self.why:
            self.why, self.is_done = why, is_done
        self._is_halted |= not is_done
        self._changed.set()

    def fail(self, why: str) -> None:
        """The same for an error: after the last step too, the run is not done by that."""
        if self.is_done:
            self.why, self.is_done = "", False
        self.stop(why)

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
                # Where the ledger knows of a batch, the rows of its rollouts are on the disk too.
                await asyncio.to_thread(self._directory.settle)
                if self._ledger.choose() != choice:
                    continue  # a group of it was given up meanwhile, or an older one is ready
                await self._ledger.consume(choice)
                return self._kept.batch(choice.groups, self._ledger.books)
            await self._hear(loop)
        return None

    async def evaluate(self, name: str, loop: "asyncio.Task[None]") -> HeldOutResult | None:
        """Try every held-out task with the weights of now; None where the run is stopped first.

        `loop` is the task of `run`: what ends it ends this.
        """
        size = self._plan.config.evaluation.attempts
        under_way = self._evaluations.begin(name, sorted(self._plan.held_out.admitted), size)
        self._changed.set()
        try:
            while not under_way.is_over(self._ledger.books):
                if self._is_halted:
                    return None
                await self._hear(loop)
        finally:
            await self._evaluations.end(under_way)
            self._changed.set()
        return under_way.measured()

    async def _hear(self, loop: "asyncio.Task[None]") -> None:
        """Wait until something may have changed. Raises what ended the loop."""
        await asyncio.wait({loop, self._news}, return_when=asyncio.FIRST_COMPLETED)
        if loop.done():
            loop.result()

    async def reject(self, reasons: Mapping[str, str]) -> None:
        """The batch under way is none: groups of it, by their names, are worth nothing."""
        groups = self._ledger.books.groups
        # Before the books change: what they do not know is forgotten at the next turn.
        rows = {name: self._kept.take(groups[name].tickets) for name in reasons}
        try:
            await self._ledger.reject(reasons)
        finally:
            for name, reason in reasons.items():
                await self._kept.void(rows[name], Void(Cause.LOST, reason))
            self._changed.set()

    async def commit(self, checkpoint: str) -> Version:
        """The step is done: what it used is forgotten, and workers hear of the version."""
        version = await self._ledger.commit(checkpoint)
        self._supervisor.set_version(version)
        self._see_end()
        self._changed.set()
        return version

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        """The policy is paused for new weights, or goes on."""
        if paused:
            self._clock.stop()
        else:
            self._clock.start()
        self._supervisor.set_paused(paused, drains=drains)

    async def _turn(self) -> None:
        """Do all that can be done now."""
        if self._watching.breaker.tripped:
            self.stop("the breaker tripped")
        self._see_end()
        self._let_go()
        if not self._is_halted:
            await self._evaluations.admit(training_is_over=bool(self.why))
        if not (self.why or self._evaluations.are_waiting):
            await self._ledger.admit(self._order, self._most())
        if not self._is_halted:
            await self._start()
        if not self.why:
            await self._slack.attend(self._ledger, self._clock.seconds)
            self._see_exhausted()
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Tell workers which trials they are about to get.

        With many places that takes milliseconds, so it is done at most a small share of the time,
        and at once only where the number of places has changed.
        """
        if self._prospects is None:
            return
        loop = asyncio.get_running_loop()
        places = 0 if self._is_halted else self._supervisor.places
        began = loop.time()
        if began < self._look_at and places == self._told_of:
            return
        waiting = [] if self._is_halted else self._waiting(places)
        kinds = self._prospects.next(waiting, places, trains=not self.why)
        self._supervisor.expect(kinds)
        took = loop.time() - began
        self._look_at = began + min(_LOOK_SECONDS, took / _LOOK_SHARE)
        self._told_of = places

    def _tell(self) -> None:
        """Wake whoever waits for a batch: one may be possible now."""
        told, self._news = self._news, asyncio.get_running_loop().create_future()
        told.set_result(None)

    async def _wait(self) -> None:
        """Until something has changed, or a slack is over."""
        # Stopped or paused, nothing is done about a slack: one that is over is no reason to look
        # again.
        waits = not (self.why or self._clock.is_stopped)
        left = self._slack.soonest - self._clock.seconds if waits else math.inf
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
            why, again = "every task is out: each was void too often", len(books.stranded)
            self.stop(f"{why}; resuming tries {again:,} of them again" if again else why)
        elif not books.pending and self._order.next_task(books.epoch) is None:
            self.stop("all epochs are done", is_done=True)

    def _most(self) -> int | None:
        """How many groups more the steps that are left can use."""
        if self._plan.steps is None:
            return None
        steps = self._plan.steps - self._ledger.books.version.number
        return self._slack.most(self._ledger, steps, self._clock.seconds)

    def _let_go(self) -> None:
        """Have workers end and release what belongs to groups that are over."""
        over = self._over.copy()
        self._over.clear()
        books = self._ledger.books
        for group in over:
            if group.id not in books.groups and group.id not in books.evals:
                for ticket in self._running.keys() & set(group.tickets):
                    self._supervisor.cancel(ticket, "its group was given up")
                self._kept.drop(group.tickets)
            if group.id in self._groups:
                self._groups.remove(group.id)
                self._supervisor.group_over(group.id)

    async def _start(self) -> None:
        """Give tickets to free places: of evaluations, then those of the oldest group first."""
        free = self._supervisor.free
        while free > 0 and not self.why and (canary := self._watching.due()) is not None:
            self._begin_canary(canary)
            free -= 1
        tickets = self._waiting(max(0, free))
        started = await asyncio.gather(*(self._ledger.start(t, self._name) for t in tickets))
        begun = [ticket for ticket, one in zip(tickets, started, strict=True) if one]
        for ticket, folder in (await self._unused_folders(begun)).items():
            self._begin(ticket, folder)
        await asyncio.sleep(0)  # each reaches its worker before free places are counted again

    async def _unused_folders(self, tickets: Iterable[str]) -> dict[str, Path]:
        """A folder for each ticket whose group is live. A ticket that a power cut took out of the
        ledger has one already, of a trial that the ledger knows nothing of."""
        books, usual = self._ledger.books, dict[str, Path]()
        for ticket in tickets:
            if (found := books.find(ticket)) is not None:
                is_evaluated = found[0].id in books.evals
                named = self._directory.evaluated if is_evaluated else self._directory.rollout
                usual[ticket] = named(found[0].task, ticket)
        if not usual:
            return usual
        # Beside the loop: the run directory may be on a slow disk.
        return await asyncio.to_thread(
            lambda: {ticket: next_use(folder) for ticket, folder in usual.items()}
        )

    def _waiting(self, most: int) -> list[str]:
        """Tickets to give out next; once the run is stopped, of evaluations only."""
        tickets = self._ledger.accounts.waiting(most)
        if not self.why:
            return tickets
        books = self._ledger.books
        return [t for t in tickets if (found := books.find(t)) and found[0].id in books.evals]

    def _begin(self, ticket: str, folder: Path) -> None:
        found = self._ledger.books.find(ticket)
        if found is None:
            return  # its group was given up while the ledger wrote that it starts
        group = found[0]
        self._groups.add(group.id)
        if (evaluation := self._evaluations.of(group.id)) is not None:
            order = _order(group, ticket, self._plan.held_out.tasks[group.task], folder)
            self._send(order, lambda result: self._keep_evaluated(evaluation, order, result))
            return
        self._watching.trial_started()
        order = _order(group, ticket, self._plan.tasks[group.task], folder)
        self._send(order, lambda result: self._keep(order, result))

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
        self._send(order, lambda result: self._keep_canary(canary, order, result))

    def _send(self, order: Order, keep: _Keep) -> None:
        async def follow() -> None:
            try:
                await keep(await self._supervisor.run(order))
            finally:
                del self._running[order.ticket]
                self._changed.set()

        self._running[order.ticket] = self._tasks.create_task(follow())

    async def _keep(self, order: Order, result: Result) -> None:
        """A ticket has come to its end: note it, in the run's directory and in the ledger."""
        self.finished += 1
        if self._ledger.books.find(order.ticket) is None:
            return  # its group was given up meanwhile
        verdict = self._believed(result)
        row = _row(order, result, verdict, self._directory)
        # Given up by the run itself, it says nothing about the tasks, and is tried again.
        is_stopped = bool(self.why) and row.cause is Cause.CANCELLED
        # Before anything is waited for: a canary that fails meanwhile has to know of it.
        self._watching.trial_finished(row)
        # Before the ledger: a graded ticket without its line would be made again.
        await self._kept.add(row)
        await self._enter(order, verdict, result, again=is_stopped)
        if self._ledger.books.find(order.ticket) is None:
            self._kept.drop((order.ticket,))  # tried again, or its group was given up

    async def _keep_evaluated(
        self, evaluation: HeldOutEvaluation, order: Order, result: Result
    ) -> None:
        """The same for a ticket of an evaluation, which neither trains nor trips anything."""
        if self._ledger.books.find(order.ticket) is None:
            return  # nobody waits for it any more
        verdict = self._believed(result)
        row = _row(order, result, verdict, self._directory)
        evaluation.add(row)
        # Given up by the run itself: it is not over by that.
        is_stopped = self._is_halted and row.cause is Cause.CANCELLED
        await self._directory.append_evaluated(row)
        await self._enter(order, verdict, result, again=is_stopped)

    def _believed(self, result: Result) -> Verdict:
        """What a worker says came of it, unless a failed canary speaks against it."""
        doubt = self._watching.doubt
        return doubt if doubt is not None and isinstance(result.verdict, Graded) else result.verdict

    async def _enter(self, order: Order, verdict: Verdict, result: Result, *, again: bool) -> None:
        spoke = True
        if not isinstance(verdict, Graded) and verdict.cause is Cause.LOST:
            spoke = await asyncio.to_thread(has_answers, Path(order.folder))
        if self._ledger.books.find(result.ticket) is None:
            return  # its group was given up while files were written or read
        if isinstance(verdict, Graded):
            await self._ledger.finish(
                result.ticket, verdict, result.seconds, result.segments, result.trial
            )
        else:
            await self._ledger.void(
                result.ticket, verdict, result.seconds, again=again, spoke=spoke
            )

    async def _keep_canary(self, canary: Canary, order: Order, result: Result) -> None:
        self._supervisor.group_over(order.group)
        row = _row(order, result, result.verdict, self._directory)
        if row.cause in UNINFORMATIVE_CAUSES:
            return
        doubtful = self._watching.canary_finished(canary, row)
        if (doubt := self._watching.doubt) is not None:
            # What is being trained on stays, and so do its rows: they are about to be read.
            found = {ticket: self._ledger.books.find(ticket) for ticket in doubtful}
            rows = self._kept.take(t for t, one in found.items() if one and not one[0].training)
            try:
                await self._ledger.distrust(doubtful, doubt)
            finally:
                await self._kept.void(rows, doubt)
        # Last: nothing may be trained on meanwhile that it speaks against.
        await self._directory.append_canary(row)


def _order(group: Group, ticket: str, task: Task, folder: Path) -> Order:
    parts = split_ticket(ticket)
    assert parts is not None, f"{ticket} is no ticket"
    return Order(
        ticket=ticket,
        group=group.id,
        task=str(task.path),
        name=group.task,
        attempt=attempt_of(group, parts[1]),
        folder=str(folder.absolute()),
        rollout=group.seed_name(parts[1]),
    )


def _row(order: Order, result: Result, verdict: Verdict, directory: RunDirectory) -> Row:
    trial = TrialResult(
        order.name,
        order.attempt,
        result.verdict,
        result.seconds,
        result.phases,
        id=result.trial,
    )
    row = row_of(
        trial,
        agent=order.agent,
        ticket=order.ticket,
        folder=directory.inside(result.folder or order.folder),
        trajectory=result.trajectory,
    )
    return row if isinstance(verdict, Graded) else voided(row, verdict.cause, verdict.reason)
