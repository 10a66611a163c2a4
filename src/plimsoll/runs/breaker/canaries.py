"""Canaries: decides when one is due, of which task, and which trials it confirms.

A canary is an oracle trial of a task that was graded at its maximum before, in this run or in a
validation. One canary counts for the whole run, on all workers. A good one confirms the trials that
finished before it started. A failed one voids all trials that no good canary confirmed.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["CANARY_AGENT", "DEFAULT_EVERY", "ENOUGH_TASKS", "Canaries"]

CANARY_AGENT = "oracle"
DEFAULT_EVERY = 200
ENOUGH_TASKS = 32
"""The number of tasks that take turns; more would add no information."""
_LONGEST = 16
"""The number of unconfirmed trials kept, in intervals. Then the oldest are dropped."""


@dataclass(slots=True)
class Canaries:
    """State only: the caller runs the trials and reports their results."""

    every: int
    """The number of trials per canary; more than 0."""
    proven: deque[str] = field(default_factory=deque[str])
    """Tasks whose solution was graded at the maximum, the next canary first."""
    validated: bool = False
    """`proven` comes from a validation, which is stronger evidence than an agent's success."""
    barred: frozenset[str] = frozenset()
    """Tasks that are known not to reach the maximum each time."""
    good: int = 0
    failed: int = 0
    _started: int = 0
    _finished: int = 0
    _unconfirmed: deque[tuple[int, str]] = field(init=False)
    """The tickets of trials that no canary has confirmed yet, with their numbers."""

    def __post_init__(self) -> None:
        self._unconfirmed = deque(maxlen=_LONGEST * self.every)

    @classmethod
    def of(cls, every: int, valid: Iterable[str], barred: Iterable[str] = ()) -> "Canaries":
        """Canaries of validated tasks; without any, of tasks that the run will prove."""
        tasks = deque(list(valid)[:ENOUGH_TASKS])
        return cls(every, tasks, validated=bool(tasks), barred=frozenset(barred))

    @property
    def wants_tasks(self) -> bool:
        """True if more tasks for canaries are needed."""
        return not self.validated and len(self.proven) < ENOUGH_TASKS

    def prove(self, task: str) -> None:
        """Record that a task was graded at its maximum: it can be a canary."""
        if self.wants_tasks and task not in self.proven and task not in self.barred:
            self.proven.append(task)

    def take(self) -> str | None:
        """The task of the canary that is due now, or None. The caller must run it."""
        if self._started < self.every or not self.proven:
            return None
        self._started = 0
        self.proven.rotate(-1)
        return self.proven[-1]

    def due_within(self, trials: int) -> str | None:
        """The next result of `take`, if due within this number of trials; otherwise None."""
        if self._started + trials < self.every or not self.proven:
            return None
        return self.proven[0]

    def trial_started(self) -> None:
        self._started += 1

    def trial_finished(self, ticket: str) -> None:
        self._unconfirmed.append((self._finished, ticket))
        self._finished += 1

    def canary_started(self) -> int:
        """The mark up to which a canary starting now confirms; passed back when it has passed."""
        return self._finished

    def canary_passed(self, mark: int) -> None:
        self.good += 1
        while self._unconfirmed and self._unconfirmed[0][0] < mark:
            self._unconfirmed.popleft()

    def canary_failed(self) -> tuple[str, ...]:
        """Record a failed canary; returns the tickets of the trials that it voids."""
        self.failed += 1
        voided = tuple(ticket for _, ticket in self._unconfirmed)
        self._unconfirmed.clear()
        return voided
