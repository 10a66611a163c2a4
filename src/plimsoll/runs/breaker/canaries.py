"""Canaries: when one is due, of which task, and which trials only a good one vouches for.

A canary is an oracle trial of a task that was graded at its maximum before, here or when it
was validated. A good one vouches for what had finished on its node before it started. A
failed one takes with it everything on its node that no good one vouches for.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["CANARY_AGENT", "DEFAULT_EVERY", "ENOUGH_TASKS", "Canaries", "TrialId"]

CANARY_AGENT = "oracle"
DEFAULT_EVERY = 200
ENOUGH_TASKS = 32
"""So many tasks take turns; more would not say more."""
_LONGEST = 16
"""How many intervals the trials after a good canary may fill before the oldest are let go."""

TrialId = tuple[str, int]
"""A task's name and the number of the attempt."""


@dataclass(slots=True)
class _Node:
    """What is known of a place where trials run."""

    unvouched: deque[tuple[int, TrialId]]
    finished: int = 0


@dataclass(slots=True)
class Canaries:
    """Plain books: the caller runs the trials and tells what came of them."""

    every: int
    """One canary for so many trials; more than 0."""
    proven: deque[str] = field(default_factory=deque[str])
    """Tasks whose solution is known to be graded at the maximum, the next canary first."""
    validated: bool = False
    """These are from a validation, which says more than an agent that solved a task."""
    barred: frozenset[str] = frozenset()
    """Tasks that are known not to be graded at the maximum each time."""
    good: int = 0
    failed: int = 0
    _started: int = 0
    _nodes: dict[str, _Node] = field(default_factory=dict[str, _Node])

    @classmethod
    def of(cls, every: int, valid: Iterable[str], barred: Iterable[str] = ()) -> "Canaries":
        """Canaries of validated tasks; where there are none, of what the run will prove."""
        tasks = deque(list(valid)[:ENOUGH_TASKS])
        return cls(every, tasks, validated=bool(tasks), barred=frozenset(barred))

    @property
    def wants_tasks(self) -> bool:
        """More tasks for canaries are welcome."""
        return not self.validated and len(self.proven) < ENOUGH_TASKS

    def prove(self, task: str) -> None:
        """A task was graded at its maximum, so it can be a canary."""
        if self.wants_tasks and task not in self.proven and task not in self.barred:
            self.proven.append(task)

    def take(self) -> str | None:
        """The task of a canary that is due now; each answer is one canary to run."""
        if self._started < self.every or not self.proven:
            return None
        self._started = 0
        self.proven.rotate(-1)
        return self.proven[-1]

    def due_within(self, trials: int) -> str | None:
        """The task that `take` will answer next, where that is so many trials away or fewer."""
        if self._started + trials < self.every or not self.proven:
            return None
        return self.proven[0]

    def trial_started(self) -> None:
        self._started += 1

    def trial_finished(self, trial: TrialId, node: str = "") -> None:
        place = self._node(node)
        place.unvouched.append((place.finished, trial))
        place.finished += 1

    def canary_started(self, node: str = "") -> int:
        """How far a good canary that starts now vouches; given back when it has finished."""
        return self._node(node).finished

    def canary_passed(self, mark: int, node: str = "") -> None:
        self.good += 1
        place = self._node(node)
        while place.unvouched and place.unvouched[0][0] < mark:
            place.unvouched.popleft()

    def canary_failed(self, node: str = "") -> tuple[TrialId, ...]:
        """The trials that are void because of it."""
        self.failed += 1
        place = self._node(node)
        taken = tuple(trial for _, trial in place.unvouched)
        place.unvouched.clear()
        return taken

    def _node(self, name: str) -> _Node:
        if name not in self._nodes:
            self._nodes[name] = _Node(deque(maxlen=_LONGEST * self.every))
        return self._nodes[name]
