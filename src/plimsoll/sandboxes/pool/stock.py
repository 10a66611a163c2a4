"""The sandboxes that there are: on which shelf, how many, and how they are closed."""

import time
from collections.abc import Callable

from plimsoll.sandboxes.pool.background import Background
from plimsoll.sandboxes.pool.keys import Key
from plimsoll.sandboxes.pool.options import PoolOptions
from plimsoll.sandboxes.pool.shelf import Pooled, Shelf
from plimsoll.sandboxes.protocol import Image, SandboxSpec

__all__ = ["Stock"]

_ROOM_SECONDS = 10.0
"""How long a start waits for sandboxes that are being closed."""


class Stock:
    """`on_gone` is called whenever a sandbox has made room."""

    def __init__(
        self, options: PoolOptions, warn: Callable[[str], None], on_gone: Callable[[], None]
    ) -> None:
        self._options = options
        self._warn = warn
        self._on_gone = on_gone
        self._closing = Background(warn)
        self._alive: set[Pooled] = set()
        """All that were started and are not gone."""
        self.shelves: dict[Key, Shelf] = {}

    def shelf(self, key: Key, image: Image, spec: SandboxSpec) -> Shelf:
        """The shelf of a key, for whoever asks with this spec."""
        shelf = self.shelves.setdefault(key, Shelf(key, image, spec))
        shelf.spec = spec
        return shelf

    def still(self, shelf: Shelf) -> Shelf:
        """A shelf that was empty meanwhile is there again, itself or another in its place."""
        return self.shelves.setdefault(shelf.key, shelf)

    def add(self, pooled: Pooled) -> None:
        self._alive.add(pooled)

    @property
    def count(self) -> int:
        """Sandboxes that are there or about to be."""
        return len(self._alive) + sum(shelf.starting for shelf in self.shelves.values())

    @property
    def has_room(self) -> bool:
        """Whether one more may be started ahead."""
        idle = sum(len(s.warm) + s.coming - len(s.waiters) for s in self.shelves.values())
        return idle < self._options.most_idle and self.count < self._options.most_alive

    async def make_room(self) -> None:
        """Wait until the host has room for a start that somebody waits for.

        Where everything there is leased it starts all the same: to wait could be for ever.
        """
        deadline = time.monotonic() + _ROOM_SECONDS
        while self.count > self._options.most_alive and (self._closing or self._close_newest()):
            left = deadline - time.monotonic()
            if left <= 0 or not await self._closing.one_ends(left):
                return

    def _close_newest(self) -> bool:
        """Close a warm sandbox: the last one started, for it is expected last."""
        warm = [pooled for shelf in self.shelves.values() for pooled in shelf.warm]
        if warm:
            newest = max(warm, key=lambda pooled: pooled.since)
            newest.shelf.warm.remove(newest)
            self.close(newest)
        return bool(warm)

    def close(self, pooled: Pooled) -> None:
        """Close a sandbox in the background, so that no trial waits for its removal."""
        if not pooled.closing:
            pooled.closing = True
            self._closing.begin(self._remove(pooled))

    async def _remove(self, pooled: Pooled) -> None:
        try:
            await pooled.sandbox.close()
        except Exception as error:  # noqa: BLE001 - the boundary: said, and the trials go on
            self._warn(f"sandbox {pooled.sandbox.id} could not be removed: {error}")
        finally:
            self._alive.discard(pooled)
        self._on_gone()

    async def clear(self) -> None:
        """Close everything, and wait for it."""
        for pooled in tuple(self._alive):
            self.close(pooled)
        await self._closing.all_end()
