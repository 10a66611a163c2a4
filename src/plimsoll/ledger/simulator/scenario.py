"""How long simulated rollouts take.

What can go wrong in a simulated run.

What is simulated, and what came of it.
"""

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
"""The kinds, each in words for a person."""

_STRAGGLERS = 0.05
_HUNG = 0.01
_LONGER = 50.0


def named(name: str) -> Duration:
    """The kind of that name."""
    for kind in DURATIONS:
        if kind == name:
            return kind
    raise UsageError(f"no durations are called {name!r}: choose {', '.join(DURATIONS)}")


def chance(*parts: object) -> random.Random:
    """Random numbers that depend on these alone, whatever was drawn before."""
    return random.Random(zlib.crc32(repr(parts).encode()))


def draw(kind: Duration, rng: random.Random) -> float:
    """One rollout's duration, in units of the median."""
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
    """Chances for each rollout, and when the process is killed."""

    void: float = 0.0
    dropped: float = 0.0
    """The completion never arrives."""
    doubled: float = 0.0
    """It arrives twice."""
    late: float = 0.0
    """It arrives after others that came later."""
    rejected: float = 0.0
    """The chance of a batch that something of it cannot be read any more."""
    crash_every: int = 0
    """The process is killed after so many writes, again and again; 0 for never."""
    crashes: int = 10
    """So often at most: who is killed all the time gets nowhere."""
    crash_at: int = 0
    """It is killed at this very write; 0 for never."""
    power: float = 0.0
    """The chance that a crash is the machine's: what is not on the disk is lost with it."""
    adopted: float = 0.0
    """The chance that a running rollout survives a crash and is taken up again."""
    new_settings: tuple[Settings, ...] = field(default=())
    """What the run may go on with after a crash."""

    def cause(self, rng: random.Random) -> Cause | None:
        """Why a rollout is void, if it is."""
        return rng.choice(_CAUSES) if rng.random() < self.void else None


class BrokenPromise(AssertionError):
    """The ledger did not keep what it promises; the message says which promise, and the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is simulated."""

    settings: Settings
    steps: int
    tasks: int = 200
    durations: Duration = "lognormal"
    step_seconds: float = 1.0
    """How long the trainer takes for a batch."""
    slack: float = 2.0
    """How long a group that is due is waited for."""
    resumes: bool = False
    """Whether rollouts can go on with newer weights."""
    ends: bool = False
    """No more is admitted than the steps can use, as in a run that ends with its last step."""
    workers: int = 0
    """Rollouts that there are workers for; 0 for as many as are admitted."""
    watchdog: float = 500.0
    """After so long a rollout that says nothing is taken to be lost."""
    checkpoint_every: int = 1
    evaluate_every: int = 0
    """Evaluation groups are admitted at every so manyth version; 0 for never."""
    early: float = 0.0
    """The chance that a rollout which ends while the trainer is at a step has tokens of the
    version that the step makes."""
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    check_every: int = 1
    """The books are checked in full after every so many happenings."""


@dataclass(slots=True)
class Run:
    """What came of it."""

    seconds: float = 0.0
    steps: int = 0
    busy: float = 0.0
    generated: float = 0.0
    trained: float = 0.0
    crashes: int = 0
    writes: int = 0
    duration_bias: float | None = None
    ages: list[int] = field(default_factory=list[int])
    """The age of the oldest sample of each step, in the order in which steps were made."""
    longest_step: float = 0.0
    """The longest time from one commit to the next."""
    batches: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """The prompts of each step's batch, in the lineage that survived."""

    @property
    def max_age(self) -> int:
        return max(self.ages, default=0)
