"""What a watch is, what it is shown, and what it says when it trips."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.runs.results import Row
from plimsoll.trials.verdicts import Cause

__all__ = ["CanaryResult", "Trip", "VoidCount", "Watch", "count_voids"]


@dataclass(frozen=True, slots=True)
class VoidCount:
    """A reason for which trials are void, and how many."""

    cause: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Trip:
    """Why the run is to stop: the rule, its numbers with their limits, and the evidence."""

    rule: str
    said: str
    voids: tuple[VoidCount, ...] = ()
    """The reasons for which trials are void, the most common first."""
    example: Row | None = None
    """A trial to look at."""
    canary: bool = False
    """The example is a canary."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """An oracle trial that was woven in, and what came of it."""

    row: Row
    top: float
    """The task's largest reward, which a good canary is graded at."""
    voided: int = 0
    """How many trials a failed one made void."""

    @property
    def good(self) -> bool:
        return self.row.reward is not None and self.row.reward >= self.top

    @property
    def cause(self) -> Cause:
        """Of the trials that a failed one makes void."""
        return Cause.SANDBOX if self.row.cause is Cause.SANDBOX else Cause.GRADER

    @property
    def said(self) -> str:
        if self.row.reward is None:
            return f"void: {self.row.cause}: {self.row.reason}"
        return f"graded {self.row.reward:g}, not {self.top:g}"


class Watch:
    """Looks at what happens and says when it is enough. A watch overrides what it looks at."""

    def trial(self, row: Row) -> Trip | None:
        """A trial has finished."""
        del row
        return None

    def batch(self, rows: Sequence[Row]) -> Trip | None:
        """A batch is full; its trials have been shown one by one before."""
        del rows
        return None

    def canary(self, result: CanaryResult) -> Trip | None:
        """A canary has finished."""
        del result
        return None


def count_voids(rows: Sequence[Row]) -> tuple[VoidCount, ...]:
    """The reasons of void rows, the most common first."""
    reasons = Counter((row.cause.value, row.reason or "") for row in rows if row.cause is not None)
    return tuple(VoidCount(*key, count) for key, count in reasons.most_common())
