"""What can go wrong in a simulated run."""

import random
from dataclasses import dataclass, field

from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Cause

__all__ = ["Faults"]

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
