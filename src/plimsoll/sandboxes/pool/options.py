"""The options of a pool."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["DEFAULT_USES", "PoolOptions", "Reuse"]

DEFAULT_USES = 50


class Reuse(StrEnum):
    """The reuse of sandboxes."""

    NONE = "none"
    """No prewarming: each trial waits for its own sandbox."""
    FRESH = "fresh"
    """Prewarmed, used once."""
    RESET = "reset"
    """Prewarmed; reset to the image's state after each use, and retired if that is in doubt."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The limits of a pool. `concurrency` is the number of concurrent trials."""

    concurrency: int
    reuse: Reuse = Reuse.FRESH
    ahead: int | None = None
    """The most prewarmed sandboxes; None means `concurrency`."""
    uses: int = DEFAULT_USES
    """The number of uses after which a sandbox is retired."""

    @property
    def max_idle(self) -> int:
        return self.concurrency if self.ahead is None else self.ahead

    @property
    def max_alive(self) -> int:
        """Prewarming never exceeds this number of sandboxes."""
        return self.concurrency + self.max_idle
