"""Scenario of a simulation: durations of rollouts, faults, the plan, and the result of a run."""

import math
import random
import zlib
from dataclasses import dataclass, field
from typing import Literal

from plimsoll.core.errors import UsageError
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Cause

__all__ = [
    "DURATIONS",
    "BrokenPromise",
    "Duration",
    "Faults",
    "Plan",
    "Run",
    "chance",
    "draw",
    "named",
]

Duration = Literal["constant", "lognormal", "stragglers", "hung"]
DURATIONS: dict[Duration, str] = {
    "constant": "all take 1",
    "lognormal": "median 1, a long tail (sigma 1)",
    "stragglers": "lognormal (sigma 0.3), and one in 20 takes 50 times as long",
    "hung": "lognormal (sigma 0.3), and one in 100 never ends",
}
"""The kinds of durations, described for people."""

_STRAGGLERS = 0.05
_HUNG = 0.01
_LONGER = 50.0


def named(name: str) -> Duration:
    """The kind with a name."""
    for kind in DURATIONS:
        if kind == name:
            return kind
    raise UsageError(f"no durations are called {name!r}: choose {', '.join(DURATIONS)}")


def chance(*parts: object) -> random.Random:
    """Random numbers that depend on these arguments alone, whatever was drawn before."""
    return random.Random(zlib.crc32(repr(parts).encode()))


def draw(kind: Duration, rng: random.Random) -> float:
    """The duration of a rollout, in units of the median."""
    match kind:
        case "constant":
            return 1.0
        case "lognormal":
            return rng.lognormvariate(0.0, 1.0)
        case "stragglers":
            slow = rng.random() < _STRAGGLERS
            return rng.lognormvariate(0.0, 0.3) * (_LONGER if slow else 1.0)
        case "hung":
            return math.inf if rng.random() < _HUNG else rng.lognormvariate(0.0, 0.3)


_CAUSES = (Cause.SANDBOX, Cause.POLICY, Cause.GRADER, Cause.TASK, Cause.LOST, Cause.BUG)


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances of faults for each rollout, and the times at which the process is killed."""

    void: float = 0.0
    dropped: float = 0.0
    """The completion never arrives."""
    doubled: float = 0.0
    """It arrives twice."""
    late: float = 0.0
    """It arrives out of order."""
    rejected: float = 0.0
    """The chance that part of a batch cannot be read any more."""
    crash_every: int = 0
    """The process is killed after every so many writes; 0 for never."""
    crashes: int = 10
    """The maximum number of kills: a process that is killed all the time makes no progress."""
    crash_at: int = 0
    """It is killed at exactly this write; 0 for never."""
    power: float = 0.0
    """The chance that the machine crashes: unsynced writes are lost as well."""
    adopted: float = 0.0
    """The chance that a running rollout survives a crash and is adopted."""
    new_settings: tuple[Settings, ...] = field(default=())
    """Settings that the run may continue with after a crash."""

    def cause(self, rng: random.Random) -> Cause | None:
        """The cause of a void rollout; None if it is not void."""
        return rng.choice(_CAUSES) if rng.random() < self.void else None


class BrokenPromise(AssertionError):
    """The ledger broke a promise; the message names the promise and the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parameters of a simulation."""

    settings: Settings
    steps: int
    tasks: int = 200
    durations: Duration = "lognormal"
    step_seconds: float = 1.0
    """The time that the trainer takes for a batch."""
    slack: float = 2.0
    """The slack of a group that is due."""
    resumes: bool = False
    """Whether rollouts can continue with newer weights."""
    ends: bool = False
    """Admit no more than the steps can use, as in a run that ends with its last step."""
    workers: int = 0
    """Rollouts that workers can run at once; 0 for all that are admitted."""
    watchdog: float = 500.0
    """The time after which a silent rollout counts as lost."""
    checkpoint_every: int = 1
    evaluate_every: int = 0
    """Evaluation groups are admitted at every version divisible by this; 0 for never."""
    early: float = 0.0
    """The chance that a rollout which ends during a step has tokens of the version that the step
    makes."""
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    check_every: int = 1
    """The number of happenings between two full checks of the books."""


@dataclass(slots=True)
class Run:
    """The result of a simulation."""

    seconds: float = 0.0
    steps: int = 0
    busy: float = 0.0
    generated: float = 0.0
    trained: float = 0.0
    crashes: int = 0
    writes: int = 0
    duration_bias: float | None = None
    ages: list[int] = field(default_factory=list[int])
    """The age of the oldest sample of each step, in the order of the steps."""
    longest_step: float = 0.0
    """The longest time between two commits."""
    batches: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """The prompts of each step's batch, in the surviving lineage."""

    @property
    def max_age(self) -> int:
        return max(self.ages, default=0)
