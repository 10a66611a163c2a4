"""The sandboxes of one key: those that wait, those on their way, and who waits for one."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.pool.keys import Key
from plimsoll.sandboxes.protocol import Image, Sandbox, SandboxSpec

__all__ = ["Pooled", "Shelf"]

_ENOUGH_FAILURES = 3
"""So many failed starts in a row are not bad luck any more."""
_LONGEST_BACKOFF = 60.0


@dataclass(eq=False, slots=True)
class Pooled:
    """A sandbox that the pool has started."""

    sandbox: Sandbox
    shelf: "Shelf"
    since: float = field(default_factory=time.monotonic)
    reusable: bool = False
    """Its baseline was taken before it was used."""
    uses: int = 0
    oom_kills: int = 0
    """How many there were before its present use."""
    closing: bool = False


@dataclass(eq=False, slots=True)
class Shelf:
    """Books only: the pool starts, resets and closes."""

    key: Key
    image: Image
    spec: SandboxSpec
    """With the labels of whoever asked last."""
    warm: deque[Pooled] = field(default_factory=deque[Pooled])
    waiters: "deque[asyncio.Future[Pooled]]" = field(
        default_factory=lambda: deque[asyncio.Future[Pooled]]()
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
        return self.failures >= _ENOUGH_FAILURES

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
        seconds = min(_LONGEST_BACKOFF, 2.0**self._backoffs)
        self._backoffs += 1
        self._retry_at = now + seconds
        return seconds

    def tell(self, why: str) -> None:
        """Tell everybody who waits that nothing comes."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(SandboxUnavailable(why))
        self.waiters.clear()

    def hand_out(self, pooled: Pooled) -> None:
        """To whoever has waited longest; to the warm ones where nobody does."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(pooled)
                return
        self.warm.append(pooled)
