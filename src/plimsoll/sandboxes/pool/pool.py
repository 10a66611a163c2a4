"""The pool: a backend whose sandboxes are started before they are asked for.

Invariants:

* A sandbox that was used is handed out again only under `reset`, and only where its reset
  proved it clean; at any doubt it is closed.
* A lease waits for a sandbox that is on its way, or starts one; never for one that is not
  coming. Where starts keep failing everybody who waits is told why.
* What is started ahead never takes the pool beyond `PoolOptions.most_alive` sandboxes, and
  what nobody expects any more is closed.
* When the pool is left, each sandbox that it started is closed: leased, warm or half started.
* What goes wrong in the background is counted, and said in `warnings`.
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
"""Whose a pool's sandboxes are by their labels, whichever trials they serve."""

_DAY = 24 * 3600.0
"""So long a sandbox is handed out. By its labels it lives longer, for the last trial it serves."""
_RESET_WAIT_SECONDS = 1.0
"""A reset that takes longer than this, and than a start, is not waited for."""
_RESETS_AT_ONCE = max(2, os.cpu_count() or 1)
"""A reset is a walk over all files: more at once than there are cores make each come later."""
_MOST_STARTS = 3
"""How many sandboxes one start may use up that die before their baseline is taken."""
_MOST_WARNINGS = 20
_POOL_CLOSED = "the pool was closed"

_log = logging.getLogger(__name__)


class Pool:
    """Made around a backend, which it enters and leaves."""

    def __init__(self, backend: Backend, options: PoolOptions) -> None:
        self._backend = backend
        self._options = options
        self._meter = Meter()
        self._demand = Demand(self._pump)
        self._stock = Stock(options, self.warn, self._pump)
        self._leases: set[Lease] = set()
        self._used_once: set[str] = set()
        """Images whose sandboxes bring along what a reset does not reach."""
        self._working = BackgroundTasks(self.warn)
        """Starts and resets."""
        self._resets = asyncio.Semaphore(_RESETS_AT_ONCE)
        self._warnings: dict[str, None] = {}
        self._own_warnings = 0
        self._closed = False

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def warnings(self) -> Sequence[str]:
        """The backend's and the pool's own, each new one behind those that were there."""
        for warning in self._backend.warnings:
            self._warnings.setdefault(warning)
        return tuple(self._warnings)

    @property
    def options(self) -> PoolOptions:
        return self._options

    @property
    def stats(self) -> PoolStats:
        """What was measured so far."""
        return self._meter.stats(self._options.reuse)

    @property
    def readings(self) -> Readings:
        """The same as counts, which can be added to those of other pools."""
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
        """So many sandboxes will be asked for soon, until they are or it is withdrawn."""
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
        """Lease a sandbox. To close it is to give it back."""
        asked = time.monotonic()
        if self._options.reuse is Reuse.NONE:
            sandbox = await self._timed_create(image, spec)
            self._meter.leased(time.monotonic() - asked, warm=False)
            return sandbox
        if self._closed:
            raise SandboxUnavailable(_POOL_CLOSED)
        shelf = self._stock.shelf(pool_key(image, spec), image, spec)
        self._demand.serve(shelf.key, spec.labels)
        pooled = await self._take_warm(shelf)
        warm = pooled is not None
        if pooled is None:
            pooled = await self._wait_for_one(shelf)
        if pooled.closing:
            raise SandboxUnavailable(_POOL_CLOSED)
        self._meter.leased(time.monotonic() - asked, warm=warm)
        pooled.uses += 1
        # Its labels cannot say so: an engine does not let them be changed.
        _log.info("sandbox %s serves %s", pooled.sandbox.id, spec.labels.ticket)
        lease = Lease(pooled, spec, self._give_back)
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

    async def _take_warm(self, shelf: KeyStock) -> PooledSandbox | None:
        """One that waits and still lives."""
        while shelf.warm:
            pooled = shelf.warm.popleft()
            try:
                dead = _too_old(pooled) or await liveness_error(pooled.sandbox)
            except BaseException:
                self._stock.close(pooled)
                raise
            if not dead or pooled.closing:
                return pooled
            self._retire(pooled, dead)
        return None

    async def _wait_for_one(self, shelf: KeyStock) -> PooledSandbox:
        """The next of its key that is ready, whoever it was begun for."""
        if self._closed:
            raise SandboxUnavailable(_POOL_CLOSED)
        if (refusal := shelf.refusal(time.monotonic())) is not None:
            raise refusal
        shelf = self._stock.still(shelf)
        waiter: asyncio.Future[PooledSandbox] = asyncio.get_running_loop().create_future()
        shelf.waiters.append(waiter)
        self._pump()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            elif waiter in shelf.waiters:
                shelf.waiters.remove(waiter)
            self._pump()
            raise

    def _give_back(self, lease: Lease) -> None:
        self._leases.discard(lease)
        pooled = lease.pooled
        shelf = pooled.shelf = self._stock.still(pooled.shelf)
        if self._closed or not pooled.reusable or not self._has_use_for(shelf):
            self._stock.close(pooled)
        elif reason := self._spent(lease):
            self._retire(pooled, reason)
        else:
            shelf.resetting += 1
            self._working.begin(self._reset(lease))
        self._pump()

    def _spent(self, lease: Lease) -> str:
        if lease.calls:
            return "it was given back in the middle of a call"
        if lease.pooled.uses >= self._options.uses:
            return f"it was used {self._options.uses} times"
        return _too_old(lease.pooled)

    def _has_use_for(self, shelf: KeyStock) -> bool:
        """Whether somebody waits for one more of these, or may be about to."""
        wants = self._demand.wants()
        worth = len(shelf.waiters) + self._worth_keeping(wants, shelf.key) + wants.unknown
        return worth > len(shelf.warm) + shelf.coming

    def _worth_keeping(self, wants: DemandSummary, key: PoolKey) -> int:
        """How many of a key are worth keeping warm.

        A trial that has just ended makes way for another. Until that one has its lease, what
        was given back would seem to be one too many, and each trial would cost a start.
        """
        wanted = wants.count(key)
        if not wanted or self._options.reuse is not Reuse.RESET:
            return wanted
        return wanted + max(0, self._options.concurrency - len(self._leases))

    async def _reset(self, lease: Lease) -> None:
        """Make a used sandbox ready for its next use, or close it."""
        pooled, shelf = lease.pooled, lease.pooled.shelf
        work = asyncio.ensure_future(self._put_back(lease, shelf.spec.network))
        try:
            try:
                patience = max(_RESET_WAIT_SECONDS, self._meter.usual_start)
                done, _ = await asyncio.wait([work], timeout=patience)
            finally:
                shelf.resetting -= 1
            if not done:
                self._pump()
            doubt = await work
        except asyncio.CancelledError:
            # The pool is being closed. The sandbox is closed when nothing is done in it any more.
            work.cancel()
            await asyncio.wait([work])
            self._stock.close(pooled)
            raise
        if doubt:
            self._retire(pooled, doubt)
        else:
            self._offer(pooled)
        self._pump()

    async def _put_back(self, lease: Lease, network: NetworkPolicy) -> str:
        async with self._resets:
            began = time.monotonic()
            doubt = await reset_sandbox(lease, network)
        if not doubt:
            self._meter.reset(time.monotonic() - began)
        return doubt

    def _offer(self, pooled: PooledSandbox) -> None:
        """Hand out a sandbox that is ready, or keep it warm."""
        if self._closed or pooled.closing:
            self._stock.close(pooled)
            return
        pooled.shelf = self._stock.still(pooled.shelf)
        pooled.shelf.hand_out(pooled)

    def _retire(self, pooled: PooledSandbox, reason: str) -> None:
        """Close a sandbox that was meant to be used, and count why it is not."""
        _log.info("sandbox %s is not used again: %s", pooled.sandbox.id, reason)
        self._meter.retired(reason)
        self._stock.close(pooled)

    # What is started and closed follows from the books. Whatever changes them calls _pump.

    def _pump(self) -> None:
        """Start what is missing and close what is not needed."""
        if self._closed or self._options.reuse is Reuse.NONE:
            return
        wants = self._demand.wants()
        for shelf in self._stock.shelves.values():
            for _ in range(shelf.missing):
                self._begin(shelf, ahead=False)
        self._trim(wants)
        self._start_ahead(wants)

    def _trim(self, wants: DemandSummary) -> None:
        """Close warm sandboxes that nobody expects. Whoever's image is not known may want any."""
        spare = wants.unknown
        for key, shelf in list(self._stock.shelves.items()):
            for _ in range(len(shelf.warm) - self._worth_keeping(wants, key)):
                if spare:
                    spare -= 1
                else:
                    self._stock.close(shelf.warm.pop())
            if shelf.is_empty and not wants.count(key):
                del self._stock.shelves[key]

    def _start_ahead(self, wants: DemandSummary) -> None:
        now = time.monotonic()
        for key, wanted in wants.by_key.items():
            shelf = self._stock.shelf(key, wanted.image, wanted.spec)
            ready = len(shelf.warm) + shelf.coming - len(shelf.waiters)
            for _ in range(wanted.count - ready):
                if not self._stock.has_room or not shelf.may_start_ahead(now):
                    break
                self._begin(shelf, ahead=True)

    def _begin(self, shelf: KeyStock, *, ahead: bool) -> None:
        shelf.starting += 1
        self._working.begin(self._bring(shelf, ahead=ahead))

    async def _bring(self, shelf: KeyStock, *, ahead: bool) -> None:
        """Start a sandbox for whoever is first to take it."""
        try:
            if not ahead:
                await self._stock.make_room()
            pooled = await self._start(shelf)
        except SandboxUnavailable as error:
            self._start_failed(shelf, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: told to whoever waits for it
            self._start_refused(shelf, error)
        else:
            shelf.start_succeeded()
            self._offer(pooled)
        finally:
            shelf.starting -= 1
        self._pump()

    async def _start(self, shelf: KeyStock) -> PooledSandbox:
        # Whoever is expected may have said so long ago.
        expires = max(shelf.spec.labels.expires, time.time() + _DAY) + _DAY
        labels = replace(shelf.spec.labels, ticket=TICKET, expires=expires)
        spec = replace(shelf.spec, labels=labels)
        for attempt in range(1, _MOST_STARTS + 1):
            pooled = PooledSandbox(await self._timed_create(shelf.image, spec), shelf)
            self._stock.add(pooled)
            try:
                if self._options.reuse is Reuse.RESET:
                    pooled.reusable = await self._can_be_reset(pooled)
                return pooled
            except SandboxUnavailable:
                # It died before its first use, as with a daemon that restarts. The backend waits
                # for the daemon when the next one is started.
                self._stock.close(pooled)
                if attempt == _MOST_STARTS:
                    raise
            except BaseException:
                self._stock.close(pooled)
                raise
        raise AssertionError("unreachable")

    async def _can_be_reset(self, pooled: PooledSandbox) -> bool:
        if pooled.shelf.image.key in self._used_once:
            why = "it brings along services that a reset does not reach"
        else:
            why = await take_baseline(pooled.sandbox)
        if why:
            self.warn(f"a sandbox is used once, not reset: {why} ({self.name})")
        return not why

    def _start_failed(self, shelf: KeyStock, reason: str) -> None:
        now = time.monotonic()
        again = shelf.start_failed(reason, now)
        if again is not None:
            asyncio.get_running_loop().call_later(again, self._pump)
        if (refusal := shelf.refusal(now)) is not None:
            self.warn(str(refusal))
            shelf.tell(str(refusal))

    def _start_refused(self, shelf: KeyStock, error: Exception) -> None:
        """The backend does not do it, or a fault of ours: whoever waited longest is told."""
        shelf.refused = True
        waiter = next((one for one in shelf.waiters if not one.done()), None)
        if waiter is not None:
            shelf.waiters.remove(waiter)
            waiter.set_exception(error)
        elif not isinstance(error, PlimsollError):
            _log.error("a sandbox could not be started ahead", exc_info=error)

    async def _drain(self) -> None:
        """Close everything, and wait for it."""
        self._closed = True
        for shelf in self._stock.shelves.values():
            shelf.tell(_POOL_CLOSED)
            shelf.warm.clear()
        self._working.cancel()
        for lease in tuple(self._leases):
            await lease.close()
        await self._working.all_end()
        await self._stock.clear()

    def warn(self, text: str) -> None:
        """Have it be said, once."""
        if text in self._warnings:
            return
        self._own_warnings += 1
        if self._own_warnings <= _MOST_WARNINGS:
            self._warnings.setdefault(text)
        else:
            _log.warning("%s", text)


def _too_old(pooled: PooledSandbox) -> str:
    """Whether it would expire before the trial of whoever asked last."""
    wanted = pooled.shelf.spec.labels.expires
    return "it is too old" if pooled.sandbox.labels.expires < wanted else ""
