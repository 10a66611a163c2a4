"""Chooses where a sandbox's upper layer is kept: on the disk of the home, or in memory.

Files in memory cost the disk nothing, neither at the start nor at the end. They are bounded:

* a sandbox's files never take more than `mb`; one that needs more is void, and the next sandboxes
  of its image are on the disk;
* the bounds of all sandboxes of a home together never take more than half of the memory that is
  available.

The kernel counts such files as memory of the sandbox. Under a limit of memory they would take of
what the task promises its processes, so the limit is raised by `mb`.
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
_SHARE = 2
"""The share of the available memory that upper layers may use: one part in so many."""
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
        self._looked = -math.inf
        self._room_mb = 0
        self._outgrown: set[str] = set()

    @property
    def may_use_memory(self) -> bool:
        return self._upper == "tmpfs" or (self._upper == "auto" and self._slow_disk)

    @property
    def mb(self) -> int:
        """The size limit of an upper layer in memory."""
        return self._mb

    def stay_on_disk(self) -> None:
        """Use the disk from now on: this kernel has no overlay on tmpfs."""
        self._upper = "disk"

    def outgrew(self, image: str) -> None:
        """Use the disk for this image from now on: a sandbox of it filled its tmpfs."""
        self._outgrown.add(image)

    def choose(self, image: str, limits: Limits, *, memory_is_limited: bool) -> int | None:
        """The size in MB of an upper layer in memory, or None for one on disk.

        By default memory is used only where it changes nothing but the speed: where the disk gets
        slow, and where the sandbox has no limit of memory.
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
        # Sandboxes of other processes count too, those on disk as well: it is no more than listing.
        names = os.listdir(self._home.sandboxes)  # noqa: PTH208 - names are all that is needed
        alive = sum(not name.startswith(".") for name in names)
        now = time.monotonic()
        if now - self._looked > _PERIOD:
            self._looked, self._room_mb = now, self._available_mb() // _SHARE
        return (alive + 1) * self._mb <= self._room_mb
