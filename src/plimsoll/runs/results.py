"""What is kept of a finished trial, and the figures made of it.

A mean is over graded trials only. Where none is graded there is no mean: it is None here,
`null` in JSON and a dash on the screen, never 0.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from plimsoll.core.endings import Ending
from plimsoll.trials.trial import TrialResult
from plimsoll.trials.verdicts import Cause, Graded

__all__ = ["Row", "Summary", "Tally", "mean", "row_of"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One trial in `results.jsonl` and in `--json`: its verdict without the evidence."""

    task: str
    attempt: int
    verdict: str
    reward: float | None
    rewards: dict[str, float] | None
    ending: Ending | None
    cause: Cause | None
    reason: str | None
    seconds: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The object that `--json` prints and `summary.json` holds."""

    tasks: int
    trials: int
    graded: int
    void: dict[str, int]
    mean_reward: float | None
    trials_per_minute: float
    results: list[Row]


def row_of(result: TrialResult) -> Row:
    """Keep what a table needs of a trial; the rest is in its folder."""
    verdict = result.verdict
    graded = isinstance(verdict, Graded)
    return Row(
        task=result.task,
        attempt=result.attempt,
        verdict=verdict.verdict,
        reward=verdict.reward if graded else None,
        rewards=verdict.rewards if graded else None,
        ending=verdict.ending,
        cause=None if graded else verdict.cause,
        reason=None if graded else verdict.reason,
        seconds=round(result.seconds, 3),
    )


def mean(rewards: Iterable[float]) -> float | None:
    """The mean, or None of nothing."""
    numbers = list(rewards)
    return math.fsum(numbers) / len(numbers) if numbers else None


@dataclass(slots=True)
class Tally:
    """The trials that have finished, of one task or of all."""

    rows: list[Row] = field(default_factory=list[Row])

    def add(self, row: Row) -> None:
        self.rows.append(row)

    @property
    def trials(self) -> int:
        return len(self.rows)

    @property
    def graded(self) -> int:
        return sum(row.reward is not None for row in self.rows)

    @property
    def mean_reward(self) -> float | None:
        return mean(row.reward for row in self.rows if row.reward is not None)

    @property
    def void(self) -> dict[str, int]:
        """How many trials are void, by cause, the most frequent first."""
        return dict(Counter(row.cause.value for row in self.rows if row.cause).most_common())

    def by_task(self) -> dict[str, "Tally"]:
        """One tally a task, in the order of the tasks' names."""
        tallies: dict[str, Tally] = {}
        for row in self.rows:
            tallies.setdefault(row.task, Tally()).add(row)
        return dict(sorted(tallies.items()))

    def summary(self, *, tasks: int, seconds: float) -> Summary:
        """The whole run as one object, its results by task and attempt."""
        return Summary(
            tasks=tasks,
            trials=self.trials,
            graded=self.graded,
            void=self.void,
            mean_reward=self.mean_reward,
            trials_per_minute=round(60 * self.trials / seconds, 2) if seconds > 0 else 0.0,
            results=sorted(self.rows, key=lambda row: (row.task, row.attempt)),
        )
