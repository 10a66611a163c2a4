"""The interface of a watch, its input events and its result, a trip."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.runs.files.results import Row
from plimsoll.trials.verdicts import Cause

__all__ = ["CanaryResult", "Trip", "VoidCount", "Watch", "count_voids"]


@dataclass(frozen=True, slots=True)
class VoidCount:
    """A reason for void trials, and their number."""

    cause: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Trip:
    """The reason to stop a run: the rule, its numbers with their limits, and the evidence."""

    rule: str
    message: str
    voids: tuple[VoidCount, ...] = ()
    """The reasons for void trials, the most common first."""
    example: Row | None = None
    """A trial to look at."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """A finished canary and its result."""

    row: Row
    top: float
    """The task's maximum reward, required of a good canary."""
    voided: int = 0
    """The number of trials that a failed canary voided."""

    @property
    def good(self) -> bool:
        return self.row.reward is not None and self.row.reward >= self.top

    @property
    def cause(self) -> Cause:
        """The cause for the trials that a failed canary voids."""
        return Cause.SANDBOX if self.row.cause is Cause.SANDBOX else Cause.GRADER

    @property
    def outcome(self) -> str:
        if self.row.reward is None:
            return f"void: {self.row.cause}: {self.row.reason}"
        return f"graded {self.row.reward:g}, not {self.top:g}"


class Watch:
    """Observes events and reports a trip. Subclasses override the events that they need."""

    def trial(self, row: Row) -> Trip | None:
        """Observe a finished trial."""
        del row
        return None

    def batch(self, rows: Sequence[Row]) -> Trip | None:
        """Observe a full batch, after each of its trials."""
        del rows
        return None

    def canary(self, result: CanaryResult) -> Trip | None:
        """Observe a finished canary."""
        del result
        return None


def count_voids(rows: Sequence[Row]) -> tuple[VoidCount, ...]:
    """The reasons of void rows, the most common first."""
    reasons = Counter((row.cause.value, row.reason or "") for row in rows if row.cause is not None)
    return tuple(VoidCount(*key, count) for key, count in reasons.most_common())
