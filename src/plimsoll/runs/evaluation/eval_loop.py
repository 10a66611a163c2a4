"""The controller of an evaluation: every attempt at every task, a bounded number at once.

Invariants:

* Attempts come before tasks: each task is tried once before any is tried again.
* One bad trial is one row. What a trial raises is a void of its own, never the run's end.
* Cancelled, it cancels each running trial, waits for its clean-up, and keeps what finished.
* A finished trial leaves its row and nothing else in memory.
* When the breaker trips, no further trial is started; those that run come to their end.
* Canaries are woven in between trials. They are no results; a failed one makes some void.
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from plimsoll.core.errors import PlimsollError
from plimsoll.core.text import safe_text
from plimsoll.runs.breaker.breaker import Breaker
from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.breaker.policy import Policy
from plimsoll.runs.breaker.watch import CanaryResult
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.results import Row, Summary, Tally, row_of, voided
from plimsoll.runs.tickets import Hints, Ticket, Upcoming
from plimsoll.tasks.task import Task
from plimsoll.trials.trial import TrialResult
from plimsoll.trials.verdicts import Cause, Evidence, Void

__all__ = ["Evaluation", "Running", "Trial", "first_error", "is_proof"]


@dataclass(slots=True)
class Running:
    """A trial that is under way, for whoever shows it."""

    ticket: Ticket
    phase: str = "start"
    since: float = field(default_factory=time.monotonic)

    def enter(self, phase: str) -> None:
        self.phase = phase

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


Trial = Callable[[Ticket, Callable[[str], None]], Awaitable[TrialResult]]
"""Runs one ticket, and tells its second argument each phase that it enters."""


class Evaluation:
    """Runs all tickets. What it has done so far can be read at any time."""

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        attempts: int,
        concurrency: int,
        trial: Trial,
        directory: RunDirectory,
        agents: Sequence[str] = ("",),
        breaker: Breaker | None = None,
        canaries: Canaries | None = None,
        hints: Hints | None = None,
    ) -> None:
        self.total = len(tasks) * attempts * len(agents)
        self.tally = Tally()
        self.breaker = breaker or Breaker(Policy(group=attempts))
        self.canaries = canaries
        self.running: dict[int, Running] = {}
        self._tasks = tasks
        self._attempts = attempts
        self._agents = agents
        self._concurrency = concurrency
        self._trial = trial
        self._directory = directory
        self._hints = hints
        self._distrust: tuple[Cause, str] | None = None
        """What makes trials void that finish after a failed canary."""
        self._started: float | None = None
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long it has been running, or ran."""
        if self._started is None:
            return 0.0
        return (self._ended or time.monotonic()) - self._started

    @property
    def summary(self) -> Summary:
        return self.tally.summary(tasks=len(self._tasks), seconds=self.seconds)

    async def run(self) -> None:
        """Run every ticket. Raises only where results can no longer be kept."""
        self._started = time.monotonic()
        upcoming = Upcoming(
            self._tickets(),
            ahead=self._concurrency,
            tasks={task.name: task for task in self._tasks},
            canaries=self.canaries,
            hints=self._hints,
        )
        try:
            async with asyncio.TaskGroup() as group:
                for slot in range(min(self._concurrency, self.total)):
                    group.create_task(self._work(slot, upcoming))
        except* PlimsollError as errors:
            raise first_error(errors) from None
        finally:
            upcoming.stop()
            self._ended = time.monotonic()

    def _tickets(self) -> Iterator[Ticket]:
        for attempt in range(1, self._attempts + 1):
            for task in self._tasks:
                for agent in self._agents:
                    yield Ticket(task, attempt, agent)

    async def _work(self, slot: int, upcoming: Upcoming) -> None:
        """Take tickets until none is left. All slots take from the same."""
        while (ticket := upcoming.take()) is not None:
            self.running[slot] = Running(ticket)
            mark = self.canaries.canary_started() if self.canaries and ticket.canary else 0
            try:
                result = await self._one(ticket, self.running[slot])
            finally:
                del self.running[slot]
                upcoming.over(ticket)
            folder = result.folder or ticket.folder(self._directory)
            row = row_of(result, agent=ticket.agent, folder=self._directory.inside(folder))
            if ticket.canary:
                await self._keep_canary(ticket, row, mark)
            else:
                await self._keep(ticket, row)
            if self.breaker.tripped:
                upcoming.stop()

    async def _keep(self, ticket: Ticket, row: Row) -> None:
        if self._distrust is not None and row.reward is not None:
            row = voided(row, *self._distrust)
        self.tally.add(row)
        if self.canaries is not None:
            self.canaries.trial_finished((row.task, row.attempt))
            if self.canaries.wants_tasks and is_proof(ticket.task, row):
                self.canaries.prove(row.task)
        self.breaker.trial(row)
        await self._directory.append(row)

    async def _keep_canary(self, ticket: Ticket, row: Row, mark: int) -> None:
        assert self.canaries is not None
        lines = [self._directory.append_canary(row)]
        result = CanaryResult(row, ticket.task.reward_range[1])
        if result.good:
            self.canaries.canary_passed(mark)
            self._distrust = None
        else:
            self._distrust = (result.cause, f"canary failed after it: {row.task}: {result.said}")
            void = self.tally.void_all(self.canaries.canary_failed(), *self._distrust)
            lines += [self._directory.append(changed) for changed in void]
            result = CanaryResult(row, result.top, len(void))
        self.breaker.canary(result)
        await asyncio.gather(*lines)

    async def _one(self, ticket: Ticket, running: Running) -> TrialResult:
        try:
            return await self._trial(ticket, running.enter)
        except Exception as error:  # noqa: BLE001 - the boundary: a trial's failure is its own void
            return self._bug(ticket, running, error)

    def _bug(self, ticket: Ticket, running: Running, error: Exception) -> TrialResult:
        """The void of a trial that failed in a way nobody foresaw, with its trace in bug.txt."""
        folder = ticket.folder(self._directory)
        reason = f"{type(error).__name__} in phase {running.phase}: {error}".splitlines()[0]
        verdict = Void(Cause.BUG, reason, (Evidence("the trace", "bug.txt"),))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            trace = "".join(traceback.format_exception(error))
            (folder / "bug.txt").write_text(safe_text(trace), "utf-8")
        except OSError as unwritten:
            verdict = Void(Cause.BUG, f"{reason} (bug.txt not written: {unwritten.strerror})")
        return TrialResult(ticket.task.name, ticket.attempt, verdict, running.seconds, {})


def is_proof(task: Task, row: Row) -> bool:
    """The task can be graded at its maximum, and has a solution that should be."""
    if row.reward is None or row.reward < task.reward_range[1]:
        return False
    folders = [step.solution_dir for step in task.steps]
    return all(folder is not None and (folder / "solve.sh").is_file() for folder in folders)


def first_error(errors: BaseExceptionGroup[PlimsollError]) -> PlimsollError:
    """One error for a person, where several slots met the same one."""
    first = errors.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
