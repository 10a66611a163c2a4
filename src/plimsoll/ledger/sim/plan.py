"""What is simulated, and what came of it."""

from dataclasses import dataclass, field

from plimsoll.ledger.settings import Settings
from plimsoll.ledger.sim.durations import Duration
from plimsoll.ledger.sim.faults import Faults

__all__ = ["BrokenPromise", "Plan", "Run"]


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
