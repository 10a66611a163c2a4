"""What the breaker allows: every limit of it, in one place."""

import math
from dataclasses import dataclass

__all__ = ["Policy"]

_ENOUGH_TASKS = 3
_BATCH = 64
_BATCHES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of a run's watches."""

    batch: int = _BATCH
    """So many finished trials, one after another, are a batch."""
    start: int = 16
    """So many trials from the first, all void for one reason or none of a task's, are enough."""
    void_share: float = 0.5
    """The largest share of a batch that may be void."""
    equal_batches: int = _BATCHES
    """So many batches in a row may not have one and the same reward throughout."""
    flat_share: float = 0.95
    """At this share of groups without variance there is nothing to learn."""
    flat_batches: int = _BATCHES
    """So many batches are looked at together for it."""
    tasks: int = 1
    """How many tasks the run has."""
    group: int = 1
    """How many trials make a group; groups of one have no variance to look at."""
    expects_equal: bool = False
    """The agent gets the same reward everywhere, as the oracle and nop do."""
    stops: bool = True
    """A trip stops the run. Without it the trip is only reported."""

    @classmethod
    def of_run(
        cls, *, step: int, group: int, tasks: int, expects_equal: bool, stops: bool
    ) -> "Policy":
        """Of a run whose steps have so many trials: fewer than three steps say nothing of whether
        rewards differ, however large a step is."""
        batches = _BATCHES * max(1, math.ceil(step / _BATCH))
        return cls(
            equal_batches=batches,
            flat_batches=batches,
            group=group,
            tasks=tasks,
            expects_equal=expects_equal,
            stops=stops,
        )

    @property
    def enough_tasks(self) -> int:
        """So many broken tasks are more than their own affair: most of them, or three."""
        return min(_ENOUGH_TASKS, self.tasks // 2 + 1)
