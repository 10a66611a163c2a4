"""`StalenessManager`: the counter form of admission, for users with their own loop.

    capacity = min(C − running, (η + v + 1)·B − (accepted + running))

It is absolute: it compares a version with counters that began at version 0, so a run that
restores its version must restore the counters as well. `on_version_recovered` does. The
ledger's own rule is relative, and has nothing to restore.
"""

import threading
from dataclasses import dataclass, replace
from typing import Protocol

__all__ = ["RolloutStats", "StalenessManager", "VersionProvider"]


class VersionProvider(Protocol):
    """The source of the policy's version."""

    def get_version(self) -> int: ...


@dataclass(slots=True)
class RolloutStats:
    """Counts of rollouts by state."""

    enqueued: int = 0
    running: int = 0
    accepted: int = 0
    rejected: int = 0


class StalenessManager:
    """Thread-safe. Sizes below 1 count as 1: a loop could make no step otherwise."""

    def __init__(
        self,
        version_provider: VersionProvider,
        max_concurrent_rollouts: int,
        consumer_batch_size: int,
        max_staleness: int,
    ) -> None:
        self.version_provider = version_provider
        self.max_concurrent_rollouts = max(1, max_concurrent_rollouts)
        self.consumer_batch_size = max(1, consumer_batch_size)
        self.max_staleness = max_staleness
        self._lock = threading.Lock()
        self._stats = RolloutStats()
        self._has_moved = False
        """Whether a version other than 0 was ever seen."""

    def get_capacity(self) -> int:
        """The number of rollouts that may be submitted now; negative if there are too many."""
        version = self.version_provider.get_version()
        with self._lock:
            self._has_moved |= version > 0
            stats = self._stats
            seats = self.max_concurrent_rollouts - stats.running
            batches = self.max_staleness + version + 1
            return min(seats, batches * self.consumer_batch_size - (stats.accepted + stats.running))

    def get_pending_limit(self) -> int:
        """The number of rollouts that may be queued."""
        return (self.max_staleness + 1) * self.consumer_batch_size

    def on_rollout_enqueued(self) -> None:
        with self._lock:
            self._stats.enqueued += 1

    def on_rollout_submitted(self) -> None:
        with self._lock:
            self._stats.enqueued -= 1
            self._stats.running += 1

    def on_rollout_accepted(self) -> None:
        with self._lock:
            self._stats.running -= 1
            self._stats.accepted += 1

    def on_rollout_rejected(self) -> None:
        with self._lock:
            self._stats.running -= 1
            self._stats.rejected += 1

    def on_version_recovered(self, version: int, buffered: int = 0) -> None:
        """Restore the counters after the version was set by a checkpoint.

        At version v exactly v batches have been consumed; `buffered` accepted rollouts wait for
        the next ones. Running rollouts are counted separately. Idempotent; after a rollback to an
        earlier version it counts fewer. A run that never left version 0 has nothing to recover.
        """
        with self._lock:
            if version == 0 and not buffered and not self._has_moved:
                return
            self._has_moved |= version > 0
            self._stats.accepted = version * self.consumer_batch_size + buffered

    def get_stats(self) -> RolloutStats:
        """A copy of the counters."""
        with self._lock:
            return replace(self._stats)
