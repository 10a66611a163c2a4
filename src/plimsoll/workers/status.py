"""How a worker fares, as far as its supervisor knows."""

from enum import StrEnum

import msgspec

__all__ = ["Phase", "WorkerStatus"]


class Phase(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    """On its way: it has not answered yet."""
    READY = "ready"
    FULL = "full"
    """Above its memory limit: it finishes what it has, and then ends."""
    ENDING = "ending"
    """Asked to end, or about to be killed."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a worker."""

    worker: str
    phase: Phase
    where: str
    """A process id, a node; empty as long as it has none."""
    host: str = ""
    running: int = 0
    """Tickets that it has."""
    finished: int = 0
    up_seconds: float = 0.0
    """Since it was placed on a host."""
    waited_seconds: float = 0.0
    """How long it waited for a host, or has waited so far."""
    silent_seconds: float = 0.0
    """Since its last beat."""
    rss_mb: float = 0.0
    lag: float = 0.0
    """The longest that its loop took to come round since the status before, in seconds."""
    counts: dict[str, int] = {}
