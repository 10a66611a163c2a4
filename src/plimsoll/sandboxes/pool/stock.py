"""The sandboxes of a pool by key: warm, starting and resetting ones, and the waiting requests."""

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
"""Consecutive failed starts after which starts are backed off."""
_MAX_BACKOFF = 60.0


@dataclass(eq=False, slots=True)
class PooledSandbox:
    """A sandbox started by the pool."""

    sandbox: Sandbox
    key_stock: "KeyStock"
    since: float = field(default_factory=time.monotonic)
    reusable: bool = False
    """Whether its baseline was taken before its first use."""
    uses: int = 0
    oom_kills: int = 0
    """OOM kills before its current use."""
    starting: bool = True
    """Whether it is counted in `KeyStock.starting`: its baseline is not taken yet."""
    closing: bool = False


@dataclass(eq=False, slots=True)
class KeyStock:
    """The state of one key; the pool starts, resets and closes sandboxes."""

    key: PoolKey
    image: Image
    spec: SandboxSpec
    """The spec with the labels of the last request."""
    warm: deque[PooledSandbox] = field(default_factory=deque[PooledSandbox])
    waiters: "deque[asyncio.Future[PooledSandbox]]" = field(
        default_factory=lambda: deque[asyncio.Future[PooledSandbox]]()
    )
    starting: int = 0
    resetting: int = 0
    """Resets in progress, without slow ones, which must not be waited for."""
    refused: bool = False
    """The backend refused this key; each request gets the error of its own start."""
    failures: int = 0
    """Consecutive failed starts."""
    reason: str = ""
    _backoffs: int = 0
    _retry_at: float = 0.0

    @property
    def pending(self) -> int:
        return self.starting + self.resetting

    @property
    def is_empty(self) -> bool:
        return not (self.warm or self.waiters or self.pending or self.failures or self.refused)

    @property
    def missing(self) -> int:
        """The number of starts needed for the current waiters."""
        missing = len(self.waiters) - self.pending
        return min(missing, 1 - self.starting) if self._is_failing else missing

    @property
    def _is_failing(self) -> bool:
        return self.failures >= _MAX_FAILURES

    def may_prewarm(self, now: float) -> bool:
        """Whether a prewarming start is allowed; after failures one at a time, with backoff."""
        if self.refused:
            return False
        return not self._is_failing or (now >= self._retry_at and not self.starting)

    def refusal(self, now: float) -> SandboxUnavailable | None:
        """The error for a request during the backoff; None if a start may be tried."""
        if not self._is_failing or now >= self._retry_at:
            return None
        return SandboxUnavailable(
            f"the pool could not start a sandbox of {self.image.key} "
            f"{self.failures} times in a row: {self.reason}"
        )

    def start_succeeded(self) -> None:
        self.failures, self._backoffs, self._retry_at = 0, 0, 0.0
        self.refused = False

    def start_failed(self, reason: str, now: float) -> float | None:
        """Record a failed start. Returns the backoff in seconds, or None to retry at once."""
        self.failures += 1
        self.reason = reason
        if not self._is_failing or now < self._retry_at:
            return None
        seconds = min(_MAX_BACKOFF, 2.0**self._backoffs)
        self._backoffs += 1
        self._retry_at = now + seconds
        return seconds

    def fail_waiters(self, why: str) -> None:
        """Fail all waiters."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(SandboxUnavailable(why))
        self.waiters.clear()

    def offer(self, pooled: PooledSandbox) -> None:
        """Give a sandbox to the first waiter, or keep it warm."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(pooled)
                return
        self.warm.append(pooled)


_ROOM_SECONDS = 10.0
"""Seconds that a start waits for sandboxes being closed."""


class Stock:
    """All sandboxes of a pool. `on_gone` is called after each removal."""

    def __init__(
        self, options: PoolOptions, warn: Callable[[str], None], on_gone: Callable[[], None]
    ) -> None:
        self._options = options
        self._warn = warn
        self._on_gone = on_gone
        self._closing = BackgroundTasks(warn)
        self._alive: set[PooledSandbox] = set()
        """The sandboxes that were started and not yet removed."""
        self.by_key: dict[PoolKey, KeyStock] = {}

    def key_stock(self, key: PoolKey, image: Image, spec: SandboxSpec) -> KeyStock:
        """The stock of a key, for a request with this specification."""
        key_stock = self.by_key.setdefault(key, KeyStock(key, image, spec))
        key_stock.spec = spec
        return key_stock

    def current(self, key_stock: KeyStock) -> KeyStock:
        """The current stock of this key; it may have been dropped or replaced while empty."""
        return self.by_key.setdefault(key_stock.key, key_stock)

    def add(self, pooled: PooledSandbox) -> None:
        self._alive.add(pooled)

    @property
    def count(self) -> int:
        """The number of sandboxes that exist or are starting."""
        starting = sum(key_stock.starting for key_stock in self.by_key.values())
        return starting + sum(not pooled.starting for pooled in self._alive)

    @property
    def can_prewarm(self) -> bool:
        """Whether one more sandbox may be prewarmed."""
        idle = sum(len(s.warm) + s.pending - len(s.waiters) for s in self.by_key.values())
        return idle < self._options.max_idle and self.count < self._options.max_alive

    async def make_room(self) -> None:
        """Wait until the pool is within its limit, for a start that a trial waits for.

        If all sandboxes are leased it returns at once: waiting could take forever.
        """
        deadline = time.monotonic() + _ROOM_SECONDS
        while self.count > self._options.max_alive and (self._closing or self._close_newest()):
            left = deadline - time.monotonic()
            if left <= 0 or not await self._closing.wait_any(left):
                return

    def _close_newest(self) -> bool:
        """Close the newest warm sandbox, which is expected last. Returns False if none is warm."""
        warm = [pooled for key_stock in self.by_key.values() for pooled in key_stock.warm]
        if warm:
            newest = max(warm, key=lambda pooled: pooled.since)
            newest.key_stock.warm.remove(newest)
            self.close(newest)
        return bool(warm)

    def close(self, pooled: PooledSandbox) -> None:
        """Close a sandbox in the background; no trial waits for its removal."""
        if not pooled.closing:
            pooled.closing, pooled.starting = True, False
            self._closing.start(self._remove(pooled))

    async def _remove(self, pooled: PooledSandbox) -> None:
        try:
            await pooled.sandbox.close()
        except Exception as error:  # noqa: BLE001 - the boundary: a warning, and the trials continue
            self._warn(f"sandbox {pooled.sandbox.id} could not be removed: {error}")
        finally:
            self._alive.discard(pooled)
        self._on_gone()

    async def clear(self) -> None:
        """Close all sandboxes and wait for their removal."""
        for pooled in tuple(self._alive):
            self.close(pooled)
        await self._closing.wait_all()
