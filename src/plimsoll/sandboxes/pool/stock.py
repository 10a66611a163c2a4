"""The sandboxes of one key: those that wait, those on their way, and who waits for one.

The sandboxes that there are: on which shelf, how many, and how they are closed.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.pool.background_tasks import BackgroundTasks
from plimsoll.sandboxes.pool.keys import PoolKey
from plimsoll.sandboxes.pool.options import PoolOptions
from plimsoll.sandboxes.protocol import Image, Sandbox, SandboxSpec

__all__ = ["KeyStock", "PooledSandbox", "Stock"]

_MAX_FAILURES = 3
"""So many failed starts in a row are not bad luck any more."""
_MAX_BACKOFF = 60.0


@dataclass(eq=False, slots=True)
class PooledSandbox:
    """A sandbox that the pool has started."""

    sandbox: Sandbox
    shelf: "KeyStock"
    since: float = field(default_factory=time.monotonic)
    reusable: bool = False
    """Its baseline was taken before it was used."""
    uses: int = 0
    oom_kills: int = 0
    """How many there were before its present use."""
    closing: bool = False


@dataclass(eq=False, slots=True)
class KeyStock:
    """Books only: the pool starts, resets and closes."""

    key: PoolKey
    image: Image
    spec: SandboxSpec
    """With the labels of whoever asked last."""
    warm: deque[PooledSandbox] = field(default_factory=deque[PooledSandbox])
    waiters: "deque[asyncio.Future[PooledSandbox]]" = field(
        default_factory=lambda: deque[asyncio.Future[PooledSandbox]]()
    )
    starting: int = 0
    resetting: int = 0
    """Those whose reset takes long are not counted: nobody should wait for them."""
    refused: bool = False
    """The backend does not do this at all; who asks for it is told by their own start."""
    failures: int = 0
    """Starts that failed in a row."""
    reason: str = ""
    _backoffs: int = 0
    _retry_at: float = 0.0

    @property
    def coming(self) -> int:
        return self.starting + self.resetting

    @property
    def is_empty(self) -> bool:
        return not (self.warm or self.waiters or self.coming or self.failures or self.refused)

    @property
    def missing(self) -> int:
        """Starts without which somebody would wait for nothing."""
        missing = len(self.waiters) - self.coming
        return min(missing, 1 - self.starting) if self._fails else missing

    @property
    def _fails(self) -> bool:
        return self.failures >= _MAX_FAILURES

    def may_start_ahead(self, now: float) -> bool:
        """Where starts fail, one at a time is tried, after a while."""
        if self.refused:
            return False
        return not self._fails or (now >= self._retry_at and not self.starting)

    def refusal(self, now: float) -> SandboxUnavailable | None:
        """What to tell whoever asks now, where it is not worth a try."""
        if not self._fails or now >= self._retry_at:
            return None
        return SandboxUnavailable(
            f"the pool could not start a sandbox of {self.image.key} "
            f"{self.failures} times in a row: {self.reason}"
        )

    def start_succeeded(self) -> None:
        self.failures, self._backoffs, self._retry_at = 0, 0, 0.0
        self.refused = False

    def start_failed(self, reason: str, now: float) -> float | None:
        """Note it. Returns in how many seconds to try again, where it should not be at once."""
        self.failures += 1
        self.reason = reason
        if not self._fails or now < self._retry_at:
            return None
        seconds = min(_MAX_BACKOFF, 2.0**self._backoffs)
        self._backoffs += 1
        self._retry_at = now + seconds
        return seconds

    def tell(self, why: str) -> None:
        """Tell everybody who waits that nothing comes."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(SandboxUnavailable(why))
        self.waiters.clear()

    def hand_out(self, pooled: PooledSandbox) -> None:
        """To whoever has waited longest; to the warm ones where nobody does."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(pooled)
                return
        self.warm.append(pooled)


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
        self._closing = BackgroundTasks(warn)
        self._alive: set[PooledSandbox] = set()
        """All that were started and are not gone."""
        self.shelves: dict[PoolKey, KeyStock] = {}

    def shelf(self, key: PoolKey, image: Image, spec: SandboxSpec) -> KeyStock:
        """The shelf of a key, for whoever asks with this spec."""
        shelf = self.shelves.setdefault(key, KeyStock(key, image, spec))
        shelf.spec = spec
        return shelf

    def still(self, shelf: KeyStock) -> KeyStock:
        """A shelf that was empty meanwhile is there again, itself or another in its place."""
        return self.shelves.setdefault(shelf.key, shelf)

    def add(self, pooled: PooledSandbox) -> None:
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

    def close(self, pooled: PooledSandbox) -> None:
        """Close a sandbox in the background, so that no trial waits for its removal."""
        if not pooled.closing:
            pooled.closing = True
            self._closing.begin(self._remove(pooled))

    async def _remove(self, pooled: PooledSandbox) -> None:
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
