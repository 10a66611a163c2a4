"""Chooses the storage of a sandbox's upper layer: the disk of the home, or memory.

Files in memory cost the disk nothing, neither at the start nor at the end. They are bounded:

* The files of a sandbox never take more than `mb`. A trial that needs more is void, and later
  sandboxes of the same image use the disk.
* The limits of all sandboxes of a home together never exceed half of the available memory.

The kernel counts such files as memory of the sandbox. They would use up part of the memory limit
that the task sets for its processes, so the limit is raised by `mb`.
"""

import math
import os
import time
from collections.abc import Callable
from typing import Literal

from plimsoll.sandboxes.local.error_messages import low_memory_message
from plimsoll.sandboxes.local.host.cgroups import available_memory_mb
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.protocol import Limits

__all__ = ["DEFAULT_UPPER_MB", "UpperMode", "UpperStorage"]

UpperMode = Literal["auto", "tmpfs", "disk"]

DEFAULT_UPPER_MB = 256
_MEMORY_DIVISOR = 2
"""Upper layers may use one part in this many of the available memory."""
_PERIOD = 1.0
"""Seconds for which a reading of the available memory is reused."""


class UpperStorage:
    """Chooses the upper layer of each sandbox of one backend."""

    def __init__(
        self,
        home: Home,
        upper: UpperMode,
        mb: int,
        *,
        slow_disk: bool,
        warn: Callable[[str], None],
        available_mb: Callable[[], int] = available_memory_mb,
    ) -> None:
        self._home = home
        self._upper = upper
        self._mb = mb
        self._slow_disk = slow_disk
        self._warn = warn
        self._available_mb = available_mb
        self._measured_at = -math.inf
        self._room_mb = 0
        self._outgrown: set[str] = set()

    @property
    def may_use_memory(self) -> bool:
        return self._upper == "tmpfs" or (self._upper == "auto" and self._slow_disk)

    @property
    def mb(self) -> int:
        """The size limit of an upper layer in memory."""
        return self._mb

    def use_disk(self) -> None:
        """Use the disk from now on: this kernel has no overlay on tmpfs."""
        self._upper = "disk"

    def mark_outgrown(self, image: str) -> None:
        """Use the disk for this image from now on: a sandbox of it filled its tmpfs."""
        self._outgrown.add(image)

    def choose(self, image: str, limits: Limits, *, memory_is_limited: bool) -> int | None:
        """The size in MB of an upper layer in memory, or None for one on disk.

        By default memory is used only where it changes nothing but the speed: if the disk gets
        slow, and the sandbox has no memory limit.
        """
        if not self.may_use_memory or image in self._outgrown:
            return None
        if (limits.storage_mb or 0) > self._mb:
            return None
        if memory_is_limited and self._upper == "auto":
            return None
        if self._fits():
            return self._mb
        if self._upper == "tmpfs":
            self._warn(low_memory_message(self._mb))
        return None

    def _fits(self) -> bool:
        # Counts sandboxes of other processes and those on disk too: one listing is cheap.
        names = os.listdir(self._home.sandboxes)  # noqa: PTH208 - names are all that is needed
        alive = sum(not name.startswith(".") for name in names)
        now = time.monotonic()
        if now - self._measured_at > _PERIOD:
            self._measured_at, self._room_mb = now, self._available_mb() // _MEMORY_DIVISOR
        return (alive + 1) * self._mb <= self._room_mb
