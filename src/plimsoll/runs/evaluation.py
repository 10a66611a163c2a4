"""The controller of an evaluation: every attempt at every task, a bounded number at once.

Invariants:

* Attempts come before tasks: each task is tried once before any is tried again.
* One bad trial is one row. What a trial raises is a void of its own, never the run's end.
* Cancelled, it cancels each running trial, waits for its clean-up, and keeps what finished.
* A finished trial leaves its row and nothing else in memory.
* When it is plain that nothing will come of it, no further trial is started (`stopping`).
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from plimsoll.core.errors import PlimsollError
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.results import Summary, Tally, row_of
from plimsoll.runs.stopping import Stopping
from plimsoll.tasks.task import Task
from plimsoll.trials.trial import TrialResult
from plimsoll.trials.verdicts import Cause, Evidence, Void

__all__ = ["Evaluation", "Running", "Ticket", "Trial"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """One attempt at one task. Attempts count from 1."""

    task: Task
    attempt: int


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
    ) -> None:
        self.total = len(tasks) * attempts
        self.tally = Tally()
        self.stopping = Stopping()
        self.running: dict[int, Running] = {}
        self._tasks = tasks
        self._attempts = attempts
        self._concurrency = concurrency
        self._trial = trial
        self._directory = directory
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
        tickets = self._tickets()
        try:
            async with asyncio.TaskGroup() as group:
                for slot in range(min(self._concurrency, self.total)):
                    group.create_task(self._work(slot, tickets))
        except* PlimsollError as errors:
            raise _first(errors) from None
        finally:
            self._ended = time.monotonic()

    def _tickets(self) -> Iterator[Ticket]:
        for attempt in range(1, self._attempts + 1):
            for task in self._tasks:
                yield Ticket(task, attempt)

    async def _work(self, slot: int, tickets: Iterator[Ticket]) -> None:
        """Take tickets until none is left. The iterator is shared by all slots."""
        for ticket in tickets:
            self.running[slot] = Running(ticket)
            try:
                result = await self._one(ticket, self.running[slot])
            finally:
                del self.running[slot]
            row = row_of(result)
            self.tally.add(row)
            self._directory.append(row)
            self.stopping.watch(row)
            if self.stopping.reason is not None:
                return

    async def _one(self, ticket: Ticket, running: Running) -> TrialResult:
        try:
            return await self._trial(ticket, running.enter)
        except Exception as error:  # noqa: BLE001 - the boundary: a trial's failure is its own void
            return self._bug(ticket, running, error)

    def _bug(self, ticket: Ticket, running: Running, error: Exception) -> TrialResult:
        """The void of a trial that failed in a way nobody foresaw, with its trace in bug.txt."""
        folder = self._directory.trial(ticket.task.name, ticket.attempt)
        reason = f"{type(error).__name__} in phase {running.phase}: {error}".splitlines()[0]
        verdict = Void(Cause.BUG, reason, (Evidence("the trace", "bug.txt"),))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "bug.txt").write_text("".join(traceback.format_exception(error)))
        except OSError as unwritten:
            verdict = Void(Cause.BUG, f"{reason} (bug.txt not written: {unwritten.strerror})")
        return TrialResult(ticket.task.name, ticket.attempt, verdict, running.seconds, {})


def _first(errors: BaseExceptionGroup[PlimsollError]) -> PlimsollError:
    """One error for a person, where several slots met the same one."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
