"""Replicas: several servers of the same policy as one upstream.

A session stays with its replica, whose KV cache holds its conversation, until that replica is down
or fails it. A new session goes to the least loaded replica. A request is retried only if that is
safe and nothing of an answer was delivered. So a dying replica loses no request: each is answered
by another one, or fails with its cause.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass

import aiohttp

from plimsoll.core.stopwatch import Stopwatch
from plimsoll.gateway.completions import Answer, Chunk, Request
from plimsoll.gateway.upstreams.failures import UpstreamFailure
from plimsoll.gateway.upstreams.openai_server import OpenAIServer
from plimsoll.gateway.upstreams.protocol import CallContext

__all__ = ["Replica", "ReplicaState", "Replicas"]

MAX_FAILURES_IN_A_ROW = 3
"""Consecutive failures until a replica is cooled down. One failed connection is enough."""
FIRST_COOLDOWN = 1.0
MAX_COOLDOWN = 30.0
"""Less than a request waits for a replica, so that each is checked again before a request gives
up.
"""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state of a replica for metrics and health pages."""

    url: str
    up: bool = True
    in_flight: int = 0
    answered: int = 0
    failures: int = 0
    cooled: int = 0
    """The number of cooldowns."""
    last_failure: str = ""


class Replica:
    """A server with its load, failures and cooldown. Times are in the event loop's clock."""

    def __init__(self, server: OpenAIServer) -> None:
        self.server = server
        self.in_flight = 0
        self.last_assigned = 0
        """The sequence number of the last session assigned to it."""
        self.up = True
        self.not_before = 0.0
        """No request is sent before this time: it is cooled down, or asked for time itself."""
        self.last_answer = 0.0
        """The time of the last answer."""
        self._answered = 0
        self._failures = 0
        self._in_a_row = 0
        self._cooled = 0
        self._next_cooldown = FIRST_COOLDOWN
        self._last_failure = ""

    @property
    def state(self) -> ReplicaState:
        return ReplicaState(
            url=self.server.url,
            up=self.up,
            in_flight=self.in_flight,
            answered=self._answered,
            failures=self._failures,
            cooled=self._cooled,
            last_failure=self._last_failure,
        )

    def ready(self, now: float) -> bool:
        return self.up and now >= self.not_before

    @contextmanager
    def busy(self) -> Generator[None]:
        """Count a request as in flight, while the context is active."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def record_answer(self, now: float) -> None:
        """Count an answer, and forget earlier failures."""
        self._answered += 1
        self.mark_healthy(now)
        self.not_before = 0.0
        self._in_a_row = 0
        self._next_cooldown = FIRST_COOLDOWN

    def mark_healthy(self, now: float) -> None:
        """Mark the replica as up after a health check. Earlier failures still count: a server may
        be healthy and yet fail every request."""
        self.last_answer = now
        self.up = True

    def record_failure(self, failure: UpstreamFailure, now: float) -> None:
        if failure.kind in ("bad_request", "context_length", "unsupported"):
            self.last_answer = now
            return
        self._failures += 1
        self._last_failure = failure.message
        if failure.retry_after is not None:
            self.not_before = max(self.not_before, now + min(failure.retry_after, MAX_COOLDOWN))
        if failure.replica_fault:
            self._in_a_row += 1
            # Requests that fail together after it went down add no information.
            if self.up and (failure.retryable or self._in_a_row >= MAX_FAILURES_IN_A_ROW):
                self.cool_down(now)

    def mark_unhealthy(self, problem: str, now: float) -> None:
        """Cool down after a failed health check. Keeps the failure that took the replica down."""
        if self.up:
            self._last_failure = problem
        self.cool_down(now)

    def end_cooldown(self) -> None:
        """End the cooldown, and reset its length."""
        self.not_before = 0.0
        self._next_cooldown = FIRST_COOLDOWN

    def cool_down(self, now: float) -> None:
        """Take the replica out until a health check succeeds. Each cooldown is longer than the
        last."""
        if self.up:
            self._cooled += 1
        self.up = False
        self.not_before = max(self.not_before, now + self._next_cooldown)
        self._next_cooldown = min(self._next_cooldown * 2, MAX_COOLDOWN)


CHECK_SECONDS = 0.5
IDLE_CHECK_SECONDS = 15.0
"""A replica that has been idle for this long is checked before a session needs it."""
CHECK_TIMEOUT = 5.0

_log = logging.getLogger(__name__)


async def watch_health(
    replicas: Sequence[Replica], on_recovery: Callable[[], None], clock: Stopwatch
) -> None:
    """Check replicas that are down or idle, until cancelled.

    A replica that failed during a pause for new weights, while the clock was stopped, is checked as
    soon as the pause is over. `on_recovery` is called when a replica comes back up.
    """
    was_paused = False
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        now = asyncio.get_running_loop().time()
        if was_paused and not clock.is_stopped:
            for replica in replicas:
                replica.end_cooldown()
        was_paused = clock.is_stopped
        due = [replica for replica in replicas if _is_due(replica, now)]
        if due:
            await asyncio.gather(*(_check(replica, on_recovery) for replica in due))


def _is_due(replica: Replica, now: float) -> bool:
    if not replica.up:
        return now >= replica.not_before
    return replica.in_flight == 0 and now - replica.last_answer > IDLE_CHECK_SECONDS


async def _check(replica: Replica, on_recovery: Callable[[], None]) -> None:
    problem = await replica.server.problem(CHECK_TIMEOUT)
    now = asyncio.get_running_loop().time()
    was_up = replica.up
    if problem:
        replica.mark_unhealthy(problem, now)
        if was_up:
            _log.warning("a replica is down: %s", problem)
        return
    replica.mark_healthy(now)
    if not was_up:
        _log.info("the policy at %s is up again", replica.server.url)
        on_recovery()


MAX_SESSIONS = 65_536
"""The number of sessions whose replica is remembered; the least recently used is evicted."""
MAX_TRIES = 6
FIRST_BACKOFF = 0.2


class Replicas:
    """Servers reached through `http`. `close` stops the health checks."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        servers: Sequence[OpenAIServer],
        *,
        streams: bool = True,
        patience: float = 60.0,
        clock: Stopwatch | None = None,
    ) -> None:
        """`patience` is how long a request waits while no replica is up, in seconds of the
        clock."""
        self._http = http
        self._replicas = [Replica(server) for server in servers]
        self._sessions: OrderedDict[str, Replica] = OrderedDict()
        self._assignments = 0
        self._patience = patience
        self._clock = clock or Stopwatch()
        self._recovered = asyncio.Event()
        self._watch = asyncio.create_task(
            watch_health(self._replicas, self._on_recovery, self._clock)
        )
        self.streams = streams

    @property
    def model(self) -> str:
        return self._replicas[0].server.model

    @property
    def replicas(self) -> list[ReplicaState]:
        return [replica.state for replica in self._replicas]

    async def answer(self, request: Request, call: CallContext) -> Answer:
        attempts = self._attempts()
        while True:
            replica = await self._choose(call.session, attempts)
            try:
                with replica.busy():
                    answer = await replica.server.answer(request, call)
            except UpstreamFailure as failure:
                await self._failed(call.session, replica, failure, attempts)
            else:
                replica.record_answer(_now())
                return answer

    @asynccontextmanager
    async def stream(
        self, request: Request, call: CallContext
    ) -> AsyncGenerator[AsyncIterator[list[Chunk]]]:
        async with aclosing(self._attempt_stream(request, call)) as pieces:
            # Entered at the first piece: until then a failure has its own status, and another
            # replica can answer.
            first = await anext(pieces)
            del request
            async with aclosing(_prepend(first, pieces)) as stream:
                yield stream

    async def count(self, request: Request, call: CallContext) -> int:
        replica = await self._choose(call.session, self._attempts())
        return await replica.server.count(request)

    async def close(self) -> None:
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self._http.close()

    async def _attempt_stream(
        self, request: Request, call: CallContext
    ) -> AsyncGenerator[list[Chunk]]:
        attempts, holder = self._attempts(), [request]
        del request
        while True:
            replica = await self._choose(call.session, attempts)
            try:
                with replica.busy():
                    async with replica.server.stream(holder[0], call) as pieces:
                        async for chunks in pieces:
                            # It cannot be retried now, so its body is freed.
                            attempts.delivered = True
                            holder.clear()
                            yield chunks
            except UpstreamFailure as failure:
                await self._failed(call.session, replica, failure, attempts)
            else:
                replica.record_answer(_now())
                return

    def _attempts(self) -> "_Attempts":
        return _Attempts(self._clock, self._patience)

    async def _failed(
        self, session: str, replica: Replica, failure: UpstreamFailure, attempts: "_Attempts"
    ) -> None:
        """Wait before a retry, if the request may be retried; else raise the failure."""
        replica.record_failure(failure, _now())
        if failure.replica_fault:
            self._reassign(session, replica)
        if not attempts.may_retry(failure):
            raise failure
        attempts.tried.add(replica)
        others = any(r.ready(_now()) and r not in attempts.tried for r in self._replicas)
        if not others:
            await asyncio.sleep(attempts.backoff(failure))

    async def _choose(self, session: str, attempts: "_Attempts") -> Replica:
        """The session's replica, or another one if that is down. Waits while all are down."""
        current = self._sessions.get(session)
        if current is not None and not attempts.tried and current.ready(_now()):
            self._sessions.move_to_end(session)
            return current
        while True:
            now = _now()
            ready = [replica for replica in self._replicas if replica.ready(now)]
            if ready:
                untried = [replica for replica in ready if replica not in attempts.tried]
                return self._assign(session, untried or ready)
            await self._wait(attempts)

    def _assign(self, session: str, ready: list[Replica]) -> Replica:
        replica = self._sessions.get(session)
        if replica is None or replica not in ready:
            replica = self._sessions[session] = self._least_loaded(ready)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(session)
        return replica

    def _reassign(self, session: str, replica: Replica) -> None:
        """Assign the session to another replica: this one may fail it again, and a replica that
        fails fast looks the least loaded."""
        if self._sessions.get(session) is not replica:
            return
        now = _now()
        others = [other for other in self._replicas if other is not replica and other.ready(now)]
        if others:
            self._sessions[session] = self._least_loaded(others)
        else:
            del self._sessions[session]

    def _least_loaded(self, ready: list[Replica]) -> Replica:
        replica = min(ready, key=lambda r: (r.in_flight, r.last_assigned))
        self._assignments += 1
        replica.last_assigned = self._assignments
        return replica

    async def _wait(self, attempts: "_Attempts") -> None:
        """Wait until a replica is up or may be tried again."""
        remaining = attempts.remaining
        if remaining <= 0:
            reasons = "; ".join(replica.state.last_failure for replica in self._replicas)
            raise UpstreamFailure("busy", f"no replica of the policy is up: {reasons}")
        times = [r.not_before - _now() for r in self._replicas if r.up]
        self._recovered.clear()
        try:
            async with asyncio.timeout(max(0.01, min([remaining, *times]))):
                await self._recovered.wait()
        except TimeoutError:
            pass

    def _on_recovery(self) -> None:
        self._recovered.set()


class _Attempts:
    """The tries and the waiting time of one request."""

    def __init__(self, clock: Stopwatch, patience: float) -> None:
        self._clock = clock
        self._deadline = clock.seconds + patience
        self.tried: set[Replica] = set()
        self.delivered = False
        self._count = 0

    @property
    def remaining(self) -> float:
        """The remaining waiting time, in seconds of the clock."""
        return self._deadline - self._clock.seconds

    def may_retry(self, failure: UpstreamFailure) -> bool:
        self._count += 1
        in_time = (failure.retry_after or 0) < self.remaining
        return failure.retryable and not self.delivered and self._count < MAX_TRIES and in_time

    def backoff(self, failure: UpstreamFailure) -> float:
        """The backoff, if the server did not set one: otherwise the replica is not used for that
        time."""
        return FIRST_BACKOFF * 2 ** (self._count - 1) if failure.retry_after is None else 0.0


async def _prepend(
    first: list[Chunk], pieces: AsyncGenerator[list[Chunk]]
) -> AsyncGenerator[list[Chunk]]:
    yield first
    async for chunks in pieces:
        yield chunks


def _now() -> float:
    return asyncio.get_running_loop().time()
