"""The scheduler: gives tickets of the ledger to workers, and enters their results.

Training rollouts, held-out evaluations, `plimsoll eval`, `plimsoll validate`, TRL and verl all run
here. Invariants:

* A ticket is in the ledger before it is sent to a worker, and its result is in the ledger before
  the ticket is forgotten.
* The ledger alone decides how much may run. The scheduler counts nothing and restores nothing.
* Once stopped it sends nothing. Running trials have a grace period, then they are cancelled.
* Memory holds live groups only: a group that was trained on or voided leaves nothing here.
* A turn looks at changes since the last turn, never at everything that runs: it costs the same
  with ten running trials or ten thousand.
* Trial sets go before training, and continue when its steps are done.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from plimsoll.core.errors import LedgerError, PlimsollError
from plimsoll.core.stopwatch import Stopwatch
from plimsoll.core.versions import Version
from plimsoll.ledger.books.group import Group
from plimsoll.ledger.data_order import DataOrder
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.rules.batching import Batch as ChosenBatch
from plimsoll.runs.batches import Batch
from plimsoll.runs.breaker.breaker import UNINFORMATIVE_CAUSES, BreakerMonitor, Canary
from plimsoll.runs.breaker.canaries import CANARY_AGENT
from plimsoll.runs.files.directory import RunDirectory, next_use
from plimsoll.runs.files.results import Row, first_error, row_of, voided
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollout_buffer import RolloutBuffer, training_order
from plimsoll.runs.scheduling.straggler_clock import StragglerClock
from plimsoll.runs.scheduling.trial_set import TrialSet, TrialSets
from plimsoll.runs.scheduling.upcoming_trials import UpcomingTrials
from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.trajectories.trajectory_file import has_answers
from plimsoll.trials.verdicts import Cause, Graded, Verdict, Void
from plimsoll.workers.controller.protocol import Workers
from plimsoll.workers.messages import Order, Result
from plimsoll.workers.worker.sandbox_pool import reuse_of

__all__ = ["Scheduler"]

_TURN_SECONDS = 0.25
"""The longest wait between two turns."""
_PREWARM_SHARE = 0.05
_PREWARM_SECONDS = 1.0
"""The largest share of time for announcements, and the longest interval between two."""

_Record = Callable[[Result], Awaitable[None]]


class Scheduler:
    """Drives one run, in the loop that `start` begins.

    Callers wait for batches and trial sets beside it, and get the error that ends it.
    """

    def __init__(
        self,
        plan: Plan,
        directory: RunDirectory,
        ledger: Ledger,
        workers: Workers,
        monitor: BreakerMonitor,
        buffer: RolloutBuffer,
        name: str,
        order: DataOrder | None,
    ) -> None:
        """`order` is the order of the training data; None for a run of trial sets only."""
        self.why = ""
        """The reason for stopping; empty while the run continues."""
        self.is_done = False
        """True if the run ended with its last step or epoch."""
        self.finished = 0
        """Trials that ended since the scheduler was made, without held-out evaluations."""
        self.sets = TrialSets(ledger)
        self._loop: asyncio.Task[None] | None = None
        self._is_halted = False
        """True once nothing more is started, not even trial sets."""
        self._plan = plan
        self._order = order
        self._directory = directory
        self._ledger = ledger
        self._workers = workers
        self._monitor = monitor
        self._buffer = buffer
        self._name = name
        """The name of this process in the ledger's `Started` events."""
        self._tasks = asyncio.TaskGroup()
        self._running: dict[str, asyncio.Task[None]] = {}
        self.orders: dict[str, tuple[Order, float]] = {}
        """The running orders, each with its start by the monotonic clock."""
        self._over: list[Group] = []
        """Groups that became final or left the books since the last turn."""
        ledger.books.on_over = self._over.append
        self._upcoming: UpcomingTrials | None = None
        """None if workers do not prewarm."""
        if reuse_of(plan.config) is not Reuse.NONE:
            self._upcoming = UpcomingTrials(plan, order, ledger, self.sets, monitor)
        self._prewarm_at = -math.inf
        """The earliest time of the next announcement to workers, by the loop's clock."""
        self._stragglers = StragglerClock(plan.config.run.slack_seconds)
        self._clock = Stopwatch()
        """Measures the slack of stragglers. Stopped while the policy is paused."""
        self._changed = asyncio.Event()
        self._next_turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def doing(self) -> str:
        """The trial set that runs beside training; empty if there is none."""
        return self.sets.doing

    @property
    def state(self) -> str:
        if self._is_halted or (self.why and not self.sets):
            return "stopping"
        return "starting" if self._loop is None else "running"

    def start(self) -> "asyncio.Task[None]":
        """Start the loop. It runs until it is cancelled, and raises the error that ends the run."""
        self._loop = asyncio.create_task(self._run())
        return self._loop

    async def _run(self) -> None:
        try:
            async with self._tasks:
                self._tasks.create_task(self._workers.failed())
                while True:
                    await self._turn()
                    self._wake_callers()
                    await self._wait()
        except* PlimsollError as errors:
            raise first_error(errors) from None

    def stop(self, why: str, *, is_done: bool = False) -> None:
        """Start nothing more. At the end of the steps (`is_done`), only trial sets continue."""
        if self.why and (is_done or self._is_halted):
            return
        if not self.why:
            self.why, self.is_done = why, is_done
        self._is_halted |= not is_done
        self._changed.set()

    def fail(self, why: str) -> None:
        """Stop for an error. Even after the last step the run then does not count as done."""
        if self.is_done:
            self.why, self.is_done = "", False
        self.stop(why)

    async def drain(self, grace: float) -> None:
        """Give running trials `grace` seconds to end, and end the workers."""
        self.stop("it was stopped")
        await self._workers.drain(grace)
        if self._running:
            await asyncio.wait(self._running.values())

    async def wait_idle(self) -> None:
        """Wait until no trial runs."""
        while self._running:
            await self._wait_for_turn()

    async def next_batch(self) -> Batch | None:
        """The next batch, consumed in the ledger; None after the last."""
        if self._ledger.books.is_training:
            raise LedgerError("the previous batch is not committed: commit or reject it first")
        while not self.why:
            choice = self._ledger.choose()
            if isinstance(choice, ChosenBatch):
                # A batch in the ledger has the rows of its rollouts on the disk.
                await asyncio.to_thread(self._directory.sync_results)
                if self._ledger.choose() != choice:
                    continue  # a group was given up meanwhile, or an older one is ready
                await self._ledger.consume(choice)
                return self._buffer.batch(choice.groups, self._ledger.books)
            await self._wait_for_turn()
        return None

    async def run_set(self, trial_set: TrialSet, *, gives_up: bool = True) -> bool:
        """Run a trial set; False if the run was stopped first.

        `gives_up`: without a caller the unfinished trials are void. Otherwise they stay in the
        ledger, for the next process that resumes the run.
        """
        self.sets.begin(trial_set)
        self._changed.set()
        try:
            while not trial_set.is_over(self._ledger.books):
                if self._is_halted:
                    return False
                await self._wait_for_turn()
        finally:
            if gives_up:
                await self.sets.give_up(trial_set)
            self._changed.set()
        return True

    async def _wait_for_turn(self) -> None:
        """Wait for the next turn. Raises the error that ended the loop."""
        assert self._loop is not None, "the scheduler is not started"
        await asyncio.wait({self._loop, self._next_turn}, return_when=asyncio.FIRST_COMPLETED)
        if self._loop.done():
            self._loop.result()

    async def reject(self, reasons: Mapping[str, str]) -> None:
        """Reject the current batch: the named groups cannot be trained on."""
        groups = self._ledger.books.groups
        # Before the books change: the next turn drops the rows of groups they do not have.
        rows = {name: self._buffer.take(groups[name].tickets) for name in reasons}
        try:
            await self._ledger.reject(reasons)
        finally:
            for name, reason in reasons.items():
                await self._buffer.void(rows[name], Void(Cause.LOST, reason))
            self._changed.set()

    async def commit(self, checkpoint: str) -> Version:
        """Commit the step: its groups leave the books, and workers get the new version."""
        version = await self._ledger.commit(checkpoint)
        self._workers.set_version(version)
        self._stop_after_last_step()
        self._changed.set()
        return version

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        """Note that the policy is paused for new weights, or resumed."""
        if paused:
            self._clock.stop()
        else:
            self._clock.start()
        self._workers.set_paused(paused, drains=drains)

    async def _turn(self) -> None:
        """Do all work that is possible now."""
        if self._monitor.breaker.tripped:
            self.stop("the breaker tripped")
        self._stop_after_last_step()
        self._cancel_abandoned()
        if not self._is_halted:
            await self.sets.admit(training_is_over=self._order is None or bool(self.why))
        if self._order is not None and not (self.why or self.sets.are_waiting):
            await self._ledger.admit(self._order, self._most())
        if not self._is_halted:
            await self._start()
        if self._order is not None and not self.why:
            await self._stragglers.attend(self._ledger, self._clock.seconds)
            self._stop_if_exhausted(self._order)
        self._prewarm()

    def _prewarm(self) -> None:
        """Announce the next trials to the workers.

        With many slots that takes milliseconds, so it gets a small share of the time.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._upcoming is None or began < self._prewarm_at:
            return
        slots = 0 if self._is_halted else self._workers.slots
        waiting = self._waiting(slots)
        self._workers.expect(self._upcoming.next(waiting, slots, is_stopped=bool(self.why)))
        took = loop.time() - began
        self._prewarm_at = began + min(_PREWARM_SECONDS, took / _PREWARM_SHARE)

    def _wake_callers(self) -> None:
        """Wake callers: a batch may be ready, or a trial set over."""
        ended, self._next_turn = self._next_turn, asyncio.get_running_loop().create_future()
        ended.set_result(None)

    async def _wait(self) -> None:
        """Wait for a change, or until the slack of a straggler is over."""
        # Stopped or paused, the slack of a straggler has no effect.
        waits = not (self.why or self._clock.is_stopped)
        left = self._stragglers.soonest - self._clock.seconds if waits else math.inf
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_TURN_SECONDS, max(0.0, left))):
                await self._changed.wait()
        self._changed.clear()

    def _stop_after_last_step(self) -> None:
        steps = self._plan.steps
        if self._order is None or steps is None:
            return
        if self._ledger.books.version.number >= steps:
            self.stop("all steps are done", is_done=True)

    def _stop_if_exhausted(self, order: DataOrder) -> None:
        """Stop if no further batch is possible."""
        books = self._ledger.books
        if self._running or books.running or books.is_training:
            return
        if isinstance(self._ledger.choose(), ChosenBatch):
            return
        if order.is_empty_without(books.quarantined.keys()):
            why, again = "no task is left: all are excluded", len(books.stranded)
            self.stop(f"{why}; resuming tries {again:,} of them again" if again else why)
        elif not books.pending and order.next_task(books.epoch) is None:
            self.stop("all epochs are done", is_done=True)

    def _most(self) -> int | None:
        """The number of groups that the remaining steps can use."""
        if self._plan.steps is None:
            return None
        steps = self._plan.steps - self._ledger.books.version.number
        return self._stragglers.most(self._ledger, steps, self._clock.seconds)

    def _cancel_abandoned(self) -> None:
        """Cancel running tickets of groups that left the books, and drop their rows."""
        over = self._over.copy()
        self._over.clear()
        books = self._ledger.books
        for group in over:
            if group.id not in books.groups and group.id not in books.evals:
                for ticket in self._running.keys() & set(group.tickets):
                    self._workers.cancel(ticket, "its group was given up")
                self._buffer.drop(group.tickets)

    async def _start(self) -> None:
        """Give tickets to free slots: canaries, trial sets, then the oldest group first."""
        free = self._workers.free
        while free > 0 and not self.why and (canary := self._monitor.due()) is not None:
            self._begin_canary(canary)
            free -= 1
        tickets = self._waiting(max(0, free))
        started = await asyncio.gather(*(self._ledger.start(t, self._name) for t in tickets))
        begun = [ticket for ticket, one in zip(tickets, started, strict=True) if one]
        for ticket, folder in (await self._unused_folders(begun)).items():
            self._begin(ticket, folder)
        await asyncio.sleep(0)  # each reaches its worker before free slots are counted again

    async def _unused_folders(self, tickets: Iterable[str]) -> dict[str, Path]:
        """An unused folder for each ticket whose group is live. If a power cut removed a ticket
        from the ledger, its usual folder holds the files of an unknown trial."""
        books, usual = self._ledger.books, dict[str, Path]()
        for ticket in tickets:
            if (found := books.find(ticket)) is None:
                continue
            group = found[0]
            if (trial_set := self.sets.of(group.id)) is not None:
                usual[ticket] = trial_set.options.folder(trial_set.group_of(group), ticket)
            else:
                usual[ticket] = self._directory.rollout(group.task, ticket)
        if not usual:
            return usual
        # In a thread: the run directory may be on a slow disk.
        return await asyncio.to_thread(
            lambda: {ticket: next_use(folder) for ticket, folder in usual.items()}
        )

    def _waiting(self, most: int) -> list[str]:
        """The next tickets; once the run is stopped, of trial sets only."""
        tickets = self._ledger.accounts.waiting(most)
        if not self.why:
            return tickets
        books = self._ledger.books
        return [t for t in tickets if (found := books.find(t)) and found[0].id in books.evals]

    def _begin(self, ticket: str, folder: Path) -> None:
        found = self._ledger.books.find(ticket)
        if found is None:
            return  # its group was given up while the ledger wrote its start
        group = found[0]
        if (trial_set := self.sets.of(group.id)) is not None:
            order = trial_set.order(group, ticket, folder)
            if trial_set.options.is_watched:
                self._monitor.trial_started()
            self._send(order, lambda result: self._record_in_set(trial_set, order, result))
            return
        self._monitor.trial_started()
        order = training_order(group, ticket, self._plan.tasks[group.task], folder)
        self._send(order, lambda result: self._record(order, result))

    def _begin_canary(self, canary: Canary) -> None:
        task = self._plan.tasks[canary.task]
        order = Order(
            ticket=f"canary-{canary.number}",
            task=str(task.path),
            name=task.name,
            attempt=canary.number,
            folder=str(self._directory.canary(task.name, canary.number).absolute()),
            agent=CANARY_AGENT,
        )
        self._send(order, lambda result: self._record_canary(canary, order, result))

    def _send(self, order: Order, record: _Record) -> None:
        async def follow() -> None:
            try:
                await record(await self._workers.run(order))
            finally:
                del self._running[order.ticket]
                del self.orders[order.ticket]
                self._changed.set()

        self.orders[order.ticket] = (order, time.monotonic())
        self._running[order.ticket] = self._tasks.create_task(follow())

    async def _record(self, order: Order, result: Result) -> None:
        """Record the result of a training ticket in the run directory and the ledger."""
        self.finished += 1
        if self._ledger.books.find(order.ticket) is None:
            return  # its group was given up meanwhile
        verdict = self._trusted(result)
        row = _row(order, result, verdict, self._directory)
        # Cancelled by the run itself: the try does not count, and the ticket is retried.
        is_stopped = bool(self.why) and row.cause is Cause.CANCELLED
        # Before the first await: a canary that fails meanwhile must void this trial too.
        self._monitor.trial_finished(row)
        # Before the ledger: a graded ticket without its row would be rolled out again.
        await self._buffer.add(row)
        await self._enter(order, verdict, result, again=is_stopped)
        if self._ledger.books.find(order.ticket) is None:
            self._buffer.drop((order.ticket,))  # retried, or its group was given up

    async def _record_in_set(self, trial_set: TrialSet, order: Order, result: Result) -> None:
        """Record the result of a ticket of a trial set, which is never trained on."""
        is_watched = trial_set.options.is_watched
        self.finished += is_watched
        if self._ledger.books.find(order.ticket) is None:
            return  # no caller waits for it any more
        verdict = self._trusted(result)
        row = _row(order, result, verdict, self._directory)
        if self._is_halted and row.cause is Cause.CANCELLED:
            # Cancelled by the run itself: it has no result, and a resumed run retries it.
            await self._enter(order, verdict, result, again=True)
            return
        if is_watched:
            self._monitor.trial_finished(row)
        trial_set.add(row)
        await trial_set.options.append(row)
        # A canary that failed meanwhile may have voided the row.
        if isinstance(verdict, Graded) and not trial_set.is_graded(row):
            verdict = self._monitor.doubt or verdict
        is_versioned = trial_set.options.is_versioned
        await self._enter(order, verdict, result, again=False, is_versioned=is_versioned)
        trial_set.settle(order.ticket, self._ledger.books)

    def _trusted(self, result: Result) -> Verdict:
        """The worker's verdict; a grade is void while the last canary has failed."""
        doubt = self._monitor.doubt
        return doubt if doubt is not None and isinstance(result.verdict, Graded) else result.verdict

    async def _enter(
        self,
        order: Order,
        verdict: Verdict,
        result: Result,
        *,
        again: bool,
        is_versioned: bool = True,
    ) -> None:
        has_answered = True
        if not isinstance(verdict, Graded) and verdict.cause is Cause.LOST:
            has_answered = await asyncio.to_thread(has_answers, Path(order.folder))
        if self._ledger.books.find(result.ticket) is None:
            return  # its group was given up while files were written or read
        if isinstance(verdict, Graded):
            segments = result.segments if is_versioned else ()
            await self._ledger.finish(
                result.ticket, verdict, result.seconds, segments, result.trial
            )
        else:
            await self._ledger.void(
                result.ticket, verdict, result.seconds, again=again, has_answered=has_answered
            )

    async def _record_canary(self, canary: Canary, order: Order, result: Result) -> None:
        row = _row(order, result, result.verdict, self._directory)
        if row.cause in UNINFORMATIVE_CAUSES:
            return
        doubtful = self._monitor.canary_finished(canary, row)
        if (doubt := self._monitor.doubt) is not None:
            # Before the first await: the rows that the canary voids must not be used meanwhile.
            changed = [
                (one, self._void_in_set(one, ticket, doubt))
                for one in self.sets
                for ticket in doubtful
            ]
            # A batch in training keeps its rows: they are about to be read.
            found = {ticket: self._ledger.books.find(ticket) for ticket in doubtful}
            rows = self._buffer.take(t for t, one in found.items() if one and not one[0].training)
            try:
                await self._ledger.distrust(doubtful, doubt)
            finally:
                await self._buffer.void(rows, doubt)
                revoked = [(one, void) for one, void in changed if void is not None]
                # Queued at once and written together: a kill revokes all of them or none.
                await asyncio.gather(*(one.options.append(void) for one, void in revoked))
                if revoked:
                    # The ledger keeps the grade of a final trial: only its last row revokes it.
                    await asyncio.to_thread(self._directory.sync_results)
        await self._directory.append_canary(row)

    def _void_in_set(self, trial_set: TrialSet, ticket: str, doubt: Void) -> Row | None:
        """Void the graded row of a ticket; None if the set has none."""
        if (row := trial_set.graded(ticket)) is None:
            return None
        void = voided(row, doubt.cause, doubt.reason)
        trial_set.add(void)
        return void


def _row(order: Order, result: Result, verdict: Verdict, directory: RunDirectory) -> Row:
    row = row_of(order, result, folder=directory.inside(result.folder or order.folder))
    return row if isinstance(verdict, Graded) else voided(row, verdict.cause, verdict.reason)
