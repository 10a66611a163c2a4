"""The limits of the breaker."""

import math
from dataclasses import dataclass

__all__ = ["BreakerLimits"]

_ENOUGH_TASKS = 3
_BATCH = 64
_BATCHES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """The limits of a run's watches."""

    batch: int = _BATCH
    """The number of consecutive finished trials in a batch."""
    start: int = 16
    """The number of void trials at the start that trips, for one reason or with no task to
    blame."""
    void_share: float = 0.5
    """The largest share of a batch that may be void."""
    equal_batches: int = _BATCHES
    """The number of batches in a row with one and the same reward that trips."""
    flat_share: float = 0.95
    """The share of groups without variance that trips."""
    flat_batches: int = _BATCHES
    """The number of batches over which that share is computed."""
    tasks: int = 1
    """The number of tasks of the run."""
    group: int = 1
    """The number of trials per group; groups of one have no variance."""
    expects_equal: bool = False
    """The agent gets the same reward everywhere, as the oracle and nop do."""
    stops: bool = True
    """A trip stops the run; otherwise it is only reported."""

    @classmethod
    def of_run(
        cls, *, step: int, group: int, tasks: int, expects_equal: bool, stops: bool
    ) -> "BreakerLimits":
        """The limits of a run with `step` trials per step. Fewer than three steps do not show if
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
        """The number of broken tasks that indicates a common fault: a majority, at most three."""
        return min(_ENOUGH_TASKS, self.tasks // 2 + 1)
