"""The pool: a backend that starts sandboxes before they are requested (prewarming).

Invariants:

* A used sandbox is leased again only under `reset`, and only if its reset proved it clean;
  otherwise it is closed.
* A request waits for a sandbox that is starting or resetting, or starts one. If starts keep
  failing, all waiters fail with the reason.
* Prewarming never exceeds `PoolOptions.max_alive` sandboxes, and sandboxes without demand are
  closed.
* When the pool is left, every sandbox that it started is closed: leased, warm or half started.
* Background failures are counted and reported in `warnings`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import PlimsollError, SandboxUnavailable
from plimsoll.core.permissions import NetworkPolicy
from plimsoll.sandboxes.pool.background_tasks import BackgroundTasks
from plimsoll.sandboxes.pool.demand import Demand, DemandSummary, Expectation
from plimsoll.sandboxes.pool.keys import PoolKey, pool_key
from plimsoll.sandboxes.pool.lease import Lease
from plimsoll.sandboxes.pool.options import PoolOptions, Reuse
from plimsoll.sandboxes.pool.reset import liveness_error, reset_sandbox, take_baseline
from plimsoll.sandboxes.pool.stats import Meter, PoolStats, Readings
from plimsoll.sandboxes.pool.stock import KeyStock, PooledSandbox, Stock
from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, OnOutput, Sandbox, SandboxSpec

__all__ = ["Pool"]

TICKET = "pool"
"""The ticket in the labels of a pool's sandboxes, whichever trials they serve."""

_DAY = 24 * 3600.0
"""Seconds for which a sandbox is leased out. Its labels expire later, after its last trial."""
_RESET_WAIT_SECONDS = 1.0
"""A reset that takes longer than this and than a usual start is not waited for."""
_MAX_RESETS = max(2, os.cpu_count() or 1)
"""Concurrent resets: each walks all files, so more than one per core delays them all."""
_MAX_ATTEMPTS = 3
"""Attempts of one start if sandboxes die before their baseline is taken."""
_MAX_WARNINGS = 20
_POOL_CLOSED = "the pool was closed"

_log = logging.getLogger(__name__)


class Pool:
    """A pool around a backend, which it enters and leaves."""

    def __init__(self, backend: Backend, options: PoolOptions) -> None:
        self._backend = backend
        self._options = options
        self._meter = Meter()
        self._demand = Demand(self._pump)
        self._stock = Stock(options, self.warn, self._pump)
        self._leases: set[Lease] = set()
        self._used_once: set[str] = set()
        """Images whose sandboxes have services that a reset does not reach."""
        self._background = BackgroundTasks(self.warn)
        """Starts and resets."""
        self._resets = asyncio.Semaphore(_MAX_RESETS)
        self._warnings: dict[str, None] = {}
        self._own_warnings = 0
        self._closed = False

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def warnings(self) -> Sequence[str]:
        """The backend's and the pool's own warnings, in order of their first occurrence."""
        for warning in self._backend.warnings:
            self._warnings.setdefault(warning)
        return tuple(self._warnings)

    @property
    def options(self) -> PoolOptions:
        return self._options

    @property
    def stats(self) -> PoolStats:
        """The statistics so far."""
        return self._meter.stats(self._options.reuse)

    @property
    def readings(self) -> Readings:
        """The measurements so far as counts, which can be added to those of other pools."""
        return self._meter.readings

    async def __aenter__(self) -> Self:
        await self._backend.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await run_to_completion(self._drain())
        finally:
            await self._backend.__aexit__(exc_type, exc, traceback)

    def expect(self, source: ImageSource, spec: SandboxSpec, count: int = 1) -> Expectation:
        """Announce that `count` sandboxes will be leased soon."""
        passes_through = self._options.reuse is Reuse.NONE
        return self._demand.expect(source, spec, 0 if passes_through else count)

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        image = await self._backend.build(source, on_output=on_output)
        if self._options.reuse is not Reuse.NONE:
            if source.compose is not None:
                self._used_once.add(image.key)
            self._demand.built(source, image)
            self._pump()
        return image

    async def create(self, image: Image, spec: SandboxSpec) -> Sandbox:
        """Lease a sandbox. Closing it returns it to the pool."""
        asked = time.monotonic()
        if self._options.reuse is Reuse.NONE:
            sandbox = await self._timed_create(image, spec)
            self._meter.leased(time.monotonic() - asked, warm=False)
            return sandbox
        if self._closed:
            raise SandboxUnavailable(_POOL_CLOSED)
        key_stock = self._stock.key_stock(pool_key(image, spec), image, spec)
        self._demand.serve(key_stock.key, spec.labels)
        pooled = await self._take_warm(key_stock)
        warm = pooled is not None
        if pooled is None:
            pooled = await self._wait_for_sandbox(key_stock)
        if pooled.closing:
            raise SandboxUnavailable(_POOL_CLOSED)
        self._meter.leased(time.monotonic() - asked, warm=warm)
        pooled.uses += 1
        # A container's labels cannot be changed, so the ticket is only logged.
        _log.info("sandbox %s is leased to %s", pooled.sandbox.id, spec.labels.ticket)
        lease = Lease(pooled, spec, self._return_lease)
        self._leases.add(lease)
        self._pump()
        return lease

    async def _timed_create(self, image: Image, spec: SandboxSpec) -> Sandbox:
        began = time.monotonic()
        try:
            sandbox = await self._backend.create(image, spec)
        except SandboxUnavailable:
            self._meter.start_failed()
            raise
        self._meter.started(time.monotonic() - began)
        return sandbox

    async def _take_warm(self, key_stock: KeyStock) -> PooledSandbox | None:
        """A warm sandbox that is alive; None if there is none."""
        while key_stock.warm:
            pooled = key_stock.warm.popleft()
            try:
                dead = _too_old(pooled) or await liveness_error(pooled.sandbox)
            except BaseException:
                self._stock.close(pooled)
                raise
            if not dead or pooled.closing:
                return pooled
            self._retire(pooled, dead)
        return None

    async def _wait_for_sandbox(self, key_stock: KeyStock) -> PooledSandbox:
        """Wait for the next ready sandbox of this key."""
        if self._closed:
            raise SandboxUnavailable(_POOL_CLOSED)
        if (refusal := key_stock.refusal(time.monotonic())) is not None:
            raise refusal
        key_stock = self._stock.current(key_stock)
        waiter: asyncio.Future[PooledSandbox] = asyncio.get_running_loop().create_future()
        key_stock.waiters.append(waiter)
        self._pump()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            elif waiter in key_stock.waiters:
                key_stock.waiters.remove(waiter)
            self._pump()
            raise

    def _return_lease(self, lease: Lease) -> None:
        self._leases.discard(lease)
        pooled = lease.pooled
        key_stock = pooled.key_stock = self._stock.current(pooled.key_stock)
        if self._closed or not pooled.reusable or not self._is_needed(key_stock):
            self._stock.close(pooled)
        elif reason := self._retirement_reason(lease):
            self._retire(pooled, reason)
        else:
            key_stock.resetting += 1
            self._background.start(self._reset(lease))
        self._pump()

    def _retirement_reason(self, lease: Lease) -> str:
        if lease.calls:
            return "it was returned during a call"
        if lease.pooled.uses >= self._options.uses:
            return f"it was used {self._options.uses} times"
        return _too_old(lease.pooled)

    def _is_needed(self, key_stock: KeyStock) -> bool:
        """Whether another sandbox of this key is needed now or may be soon."""
        demand = self._demand.summary()
        needed = len(key_stock.waiters) + self._keep_warm(demand, key_stock.key) + demand.unknown
        return needed > len(key_stock.warm) + key_stock.pending

    def _keep_warm(self, demand: DemandSummary, key: PoolKey) -> int:
        """The number of sandboxes of a key to keep warm.

        A trial that has just ended makes room for another. Without the free slots, a returned
        sandbox would be closed before the next trial leases it, and each trial would cost a start.
        """
        entry = demand.count(key)
        if not entry or self._options.reuse is not Reuse.RESET:
            return entry
        return entry + max(0, self._options.concurrency - len(self._leases))

    async def _reset(self, lease: Lease) -> None:
        """Reset a used sandbox and offer it, or retire it."""
        pooled, key_stock = lease.pooled, lease.pooled.key_stock
        work = asyncio.ensure_future(self._timed_reset(lease, key_stock.spec.network))
        try:
            try:
                patience = max(_RESET_WAIT_SECONDS, self._meter.usual_start)
                done, _ = await asyncio.wait([work], timeout=patience)
            finally:
                key_stock.resetting -= 1
            if not done:
                self._pump()
            reason = await work
        except asyncio.CancelledError:
            # The pool is closing. The sandbox is closed after the reset has stopped.
            work.cancel()
            await asyncio.wait([work])
            self._stock.close(pooled)
            raise
        if reason:
            self._retire(pooled, reason)
        else:
            self._offer(pooled)
        self._pump()

    async def _timed_reset(self, lease: Lease, network: NetworkPolicy) -> str:
        async with self._resets:
            began = time.monotonic()
            reason = await reset_sandbox(lease, network)
        if not reason:
            self._meter.reset(time.monotonic() - began)
        return reason

    def _offer(self, pooled: PooledSandbox) -> None:
        """Give a ready sandbox to a waiter, or keep it warm."""
        if self._closed or pooled.closing:
            self._stock.close(pooled)
            return
        pooled.key_stock = self._stock.current(pooled.key_stock)
        pooled.key_stock.offer(pooled)

    def _retire(self, pooled: PooledSandbox, reason: str) -> None:
        """Close a sandbox that cannot be reused, and count the reason."""
        _log.info("sandbox %s is retired: %s", pooled.sandbox.id, reason)
        self._meter.retired(reason)
        self._stock.close(pooled)

    # Starts and closes follow from the state. Every change of the state calls _pump.

    def _pump(self) -> None:
        """Start missing sandboxes and close unneeded ones."""
        if self._closed or self._options.reuse is Reuse.NONE:
            return
        demand = self._demand.summary()
        for key_stock in self._stock.by_key.values():
            for _ in range(key_stock.missing):
                self._start_one(key_stock, prewarm=False)
        self._close_unneeded(demand)
        self._prewarm(demand)

    def _close_unneeded(self, demand: DemandSummary) -> None:
        """Close warm sandboxes without demand; unknown images count as demand for any key."""
        spare = demand.unknown
        for key, key_stock in list(self._stock.by_key.items()):
            for _ in range(len(key_stock.warm) - self._keep_warm(demand, key)):
                if spare:
                    spare -= 1
                else:
                    self._stock.close(key_stock.warm.pop())
            if key_stock.is_empty and not demand.count(key):
                del self._stock.by_key[key]

    def _prewarm(self, demand: DemandSummary) -> None:
        now = time.monotonic()
        for key, entry in demand.by_key.items():
            key_stock = self._stock.key_stock(key, entry.image, entry.spec)
            ready = len(key_stock.warm) + key_stock.pending - len(key_stock.waiters)
            for _ in range(entry.count - ready):
                if not self._stock.can_prewarm or not key_stock.may_prewarm(now):
                    break
                self._start_one(key_stock, prewarm=True)

    def _start_one(self, key_stock: KeyStock, *, prewarm: bool) -> None:
        key_stock.starting += 1
        self._background.start(self._start_and_offer(key_stock, prewarm=prewarm))

    async def _start_and_offer(self, key_stock: KeyStock, *, prewarm: bool) -> None:
        """Start a sandbox and offer it."""
        try:
            if not prewarm:
                await self._stock.make_room()
            pooled = await self._start_sandbox(key_stock)
        except SandboxUnavailable as error:
            self._start_failed(key_stock, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: raised in the first waiter
            self._start_refused(key_stock, error)
        else:
            key_stock.start_succeeded()
            pooled.starting = False
            self._offer(pooled)
        finally:
            key_stock.starting -= 1
        self._pump()

    async def _start_sandbox(self, key_stock: KeyStock) -> PooledSandbox:
        # The labels of an expectation may be old.
        expires = max(key_stock.spec.labels.expires, time.time() + _DAY) + _DAY
        labels = replace(key_stock.spec.labels, ticket=TICKET, expires=expires)
        spec = replace(key_stock.spec, labels=labels)
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            pooled = PooledSandbox(await self._timed_create(key_stock.image, spec), key_stock)
            self._stock.add(pooled)
            try:
                if self._options.reuse is Reuse.RESET:
                    pooled.reusable = await self._can_be_reset(pooled)
                return pooled
            except SandboxUnavailable:
                # It died before its first use, e.g. because the daemon restarted. The backend waits
                # for the daemon at the next start.
                self._stock.close(pooled)
                if attempt == _MAX_ATTEMPTS:
                    raise
            except BaseException:
                self._stock.close(pooled)
                raise
        raise AssertionError("unreachable")

    async def _can_be_reset(self, pooled: PooledSandbox) -> bool:
        if pooled.key_stock.image.key in self._used_once:
            why = "it has services that a reset does not reach"
        else:
            why = await take_baseline(pooled.sandbox)
        if why:
            self.warn(f"a sandbox is used once, not reset: {why} ({self.name})")
        return not why

    def _start_failed(self, key_stock: KeyStock, reason: str) -> None:
        now = time.monotonic()
        backoff = key_stock.start_failed(reason, now)
        if backoff is not None:
            asyncio.get_running_loop().call_later(backoff, self._pump)
        if (refusal := key_stock.refusal(now)) is not None:
            self.warn(str(refusal))
            key_stock.fail_waiters(str(refusal))

    def _start_refused(self, key_stock: KeyStock, error: Exception) -> None:
        """Pass a refusal of the backend, or a bug, to the first waiter."""
        key_stock.refused = True
        waiter = next((one for one in key_stock.waiters if not one.done()), None)
        if waiter is not None:
            key_stock.waiters.remove(waiter)
            waiter.set_exception(error)
        elif not isinstance(error, PlimsollError):
            _log.error("a sandbox could not be prewarmed", exc_info=error)

    async def _drain(self) -> None:
        """Close all leases and sandboxes, and wait for their removal."""
        self._closed = True
        for key_stock in self._stock.by_key.values():
            key_stock.fail_waiters(_POOL_CLOSED)
            key_stock.warm.clear()
        self._background.cancel()
        for lease in tuple(self._leases):
            await lease.close()
        await self._background.wait_all()
        await self._stock.clear()

    def warn(self, text: str) -> None:
        """Add a warning, once."""
        if text in self._warnings:
            return
        self._own_warnings += 1
        if self._own_warnings <= _MAX_WARNINGS:
            self._warnings.setdefault(text)
        else:
            _log.warning("%s", text)


def _too_old(pooled: PooledSandbox) -> str:
    """A reason to retire a sandbox that would expire before the last request's trial; else ""."""
    entry = pooled.key_stock.spec.labels.expires
    return "it is too old" if pooled.sandbox.labels.expires < entry else ""
