"""What a pool may do, and how much of it."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["DEFAULT_USES", "PoolOptions", "Reuse"]

DEFAULT_USES = 50


class Reuse(StrEnum):
    """How often a sandbox serves."""

    NONE = "none"
    """Nothing is started ahead: each trial waits for its own sandbox."""
    FRESH = "fresh"
    """Started ahead, used once."""
    RESET = "reset"
    """Started ahead; put back to its image's state after each use, and retired at any doubt."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """`concurrency` is how many trials the run has at once."""

    concurrency: int
    reuse: Reuse = Reuse.FRESH
    ahead: int | None = None
    """The most sandboxes that wait for a trial; None is as many as run at once."""
    uses: int = DEFAULT_USES
    """After so many uses a sandbox is retired, whatever its reset says."""

    @property
    def most_idle(self) -> int:
        return self.concurrency if self.ahead is None else self.ahead

    @property
    def most_alive(self) -> int:
        """What the pool starts ahead never takes the host beyond this."""
        return self.concurrency + self.most_idle
