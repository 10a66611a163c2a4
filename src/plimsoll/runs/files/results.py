"""The result row of a finished trial, and the statistics over rows.

A mean is over graded trials only. Without a graded trial there is no mean: it is None here,
`null` in JSON and a dash on the screen, never 0.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from plimsoll.core.endings import Ending
from plimsoll.core.errors import PlimsollError
from plimsoll.sandboxes.pool.stats import PoolStats
from plimsoll.trials.verdicts import Cause, Graded
from plimsoll.workers.messages import Order, Result

__all__ = [
    "Diagnosis",
    "Row",
    "Summary",
    "Tally",
    "TrialCounts",
    "first_error",
    "mean",
    "row_of",
    "voided",
]


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    agent: str = ""
    """The agent, if it is not the run's own."""
    ticket: str = ""
    """The trial's ticket in the ledger, if the run has one."""
    trial: str = ""
    """The trial's id, also in `verdict.json` and the ledger. A ticket that a power cut removed from
    the ledger is tried again, by a trial with another id."""
    folder: str = ""
    """The trial's folder, relative to the run directory."""
    trajectory: str = ""
    """The path of the trajectory: relative to the run directory, or a full fsspec path."""
    turns: int | None = None
    """The number of the policy's answers; None if the agent asks no policy."""
    prompt_tokens: int | None = None
    """Summed over all prompts, including repeated context."""
    answer_tokens: int | None = None
    sandbox_seconds: float | None = None
    """The start time of the sandbox."""
    paused_seconds: float | None = None
    """The time that the policy was paused for new weights while the agent worked, if it was."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of a breaker's trip, for a person."""

    rule: str
    said: str
    """The event: the numbers and their limits."""
    evidence: list[str]
    look: str | None
    """The folder of a trial to look at."""
    remedies: list[str]
    go_on: list[str]
    """Commands, each with its purpose."""
    stopped: bool
    """True if the trip stopped the run; otherwise it continued as requested."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The object that `--json` prints and `summary.json` holds."""

    tasks: int
    trials: int
    graded: int
    void: dict[str, int]
    mean_reward: float | None
    trials_per_minute: float
    results: list[Row]
    breaker: Diagnosis | None = None
    """Only if the breaker tripped."""
    pool: PoolStats | None = None
    """Statistics of sandbox starts, if there were any."""
    turns: int | None = None
    """Summed over all trials, if the agent asks a policy."""
    prompt_tokens: int | None = None
    answer_tokens: int | None = None


def row_of(order: Order, result: Result, *, folder: str) -> Row:
    """The row of a finished ticket. `folder` is the trial's, relative to the run directory."""
    verdict = result.verdict
    graded = isinstance(verdict, Graded)
    usage, started, paused = result.usage, result.sandbox_seconds, result.paused_seconds
    return Row(
        task=order.name,
        attempt=order.attempt,
        verdict=verdict.verdict,
        reward=verdict.reward if graded else None,
        rewards=verdict.rewards if graded else None,
        ending=verdict.ending,
        cause=None if graded else verdict.cause,
        reason=None if graded else verdict.reason,
        seconds=round(result.seconds, 3),
        agent=order.agent,
        ticket=order.ticket,
        trial=result.trial,
        folder=folder,
        trajectory=result.trajectory,
        turns=None if usage is None else usage.turns,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        answer_tokens=None if usage is None else usage.answer_tokens,
        sandbox_seconds=None if started is None else round(started, 4),
        paused_seconds=None if paused is None else round(paused, 3),
    )


def first_error(errors: BaseExceptionGroup[PlimsollError]) -> PlimsollError:
    """The first error of a group, for a person: several tasks may fail with the same one."""
    first = errors.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first


def voided(row: Row, cause: Cause, reason: str) -> Row:
    """The row of a trial whose grade was revoked."""
    return replace(row, verdict="void", reward=None, rewards=None, cause=cause, reason=reason)


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum of the known counts; None without any."""
    counted = [count for count in counts if count is not None]
    return sum(counted) if counted else None


def mean(rewards: Iterable[float]) -> float | None:
    """The mean; None of an empty sequence."""
    numbers = list(rewards)
    return math.fsum(numbers) / len(numbers) if numbers else None


@dataclass(slots=True)
class TrialCounts:
    """Counts and rewards of a run without training."""

    total: int = 0
    """The number of requested trials."""
    graded: int = 0
    void: dict[str, int] = field(default_factory=dict[str, int])
    rewards: float = 0.0
    """The sum over graded trials."""

    @property
    def trials(self) -> int:
        return self.graded + sum(self.void.values())

    @property
    def mean_reward(self) -> float | None:
        return self.rewards / self.graded if self.graded else None

    def add(self, row: Row) -> None:
        if row.reward is not None:
            self.graded += 1
            self.rewards += row.reward
        elif row.cause is not None:
            self.void[row.cause.value] = self.void.get(row.cause.value, 0) + 1


@dataclass(slots=True)
class Tally:
    """The finished trials of one task or of all."""

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
        """The number of void trials by cause, the most frequent first."""
        return dict(Counter(row.cause.value for row in self.rows if row.cause).most_common())

    def by_task(self) -> dict[str, "Tally"]:
        """One tally per task, sorted by name."""
        tallies: dict[str, Tally] = {}
        for row in self.rows:
            tallies.setdefault(row.task, Tally()).add(row)
        return dict(sorted(tallies.items()))

    def summary(self, *, tasks: int, seconds: float, earlier: int = 0) -> Summary:
        """The summary of the run, with its results by task and attempt.

        `earlier`: the trials that had ended before these seconds, in an earlier process.
        """
        rate = 60 * (self.trials - earlier) / seconds if seconds > 0 else 0.0
        return Summary(
            tasks=tasks,
            trials=self.trials,
            graded=self.graded,
            void=self.void,
            mean_reward=self.mean_reward,
            trials_per_minute=round(rate, 2),
            results=sorted(self.rows, key=lambda row: (row.task, row.attempt)),
            turns=_sum(row.turns for row in self.rows),
            prompt_tokens=_sum(row.prompt_tokens for row in self.rows),
            answer_tokens=_sum(row.answer_tokens for row in self.rows),
        )
