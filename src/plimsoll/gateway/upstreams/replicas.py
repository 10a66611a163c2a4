"""Several servers of the same policy as one.

A session stays with its replica, whose cache holds its conversation, for as long as that one
is up and does not fail it; a new one goes to the least loaded. A request is sent again only
where that is safe and nothing of an answer has been delivered. So a replica that dies loses no
request: each is answered by another, or fails with its cause.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import aiohttp

from plimsoll.core.stopwatch import Stopwatch
from plimsoll.gateway.forms import Answer, Chunk, Request
from plimsoll.gateway.upstreams.failures import Failed
from plimsoll.gateway.upstreams.health import watch
from plimsoll.gateway.upstreams.openai import Server
from plimsoll.gateway.upstreams.protocol import Call
from plimsoll.gateway.upstreams.replica import Replica, ReplicaState

__all__ = ["Replicas"]

SESSIONS = 65_536
"""Of so many sessions it is known which replica they are with; the least recent is forgotten."""
TRIES = 6
PAUSE_FIRST = 0.2


class Replicas:
    """The servers that `http` reaches. Close it to end its background check."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        servers: Sequence[Server],
        *,
        streams: bool = True,
        patience: float = 60.0,
        clock: Stopwatch | None = None,
    ) -> None:
        """`patience` is how long a request waits, in seconds of the clock, while none is up."""
        self._http = http
        self._replicas = [Replica(server) for server in servers]
        self._sessions: OrderedDict[str, Replica] = OrderedDict()
        self._turn = 0
        self._patience = patience
        self._clock = clock or Stopwatch()
        self._back = asyncio.Event()
        self._watch = asyncio.create_task(watch(self._replicas, self._came_back, self._clock))
        self.streams = streams

    @property
    def model(self) -> str:
        return self._replicas[0].server.model

    @property
    def replicas(self) -> list[ReplicaState]:
        return [replica.state for replica in self._replicas]

    async def answer(self, request: Request, call: Call) -> Answer:
        attempts = self._attempts()
        while True:
            replica = await self._choose(call.session, attempts)
            try:
                answer = await replica.answer(request, call)
            except Failed as failure:
                await self._failed(call.session, replica, failure, attempts)
            else:
                replica.answered(_now())
                return answer

    @asynccontextmanager
    async def stream(
        self, request: Request, call: Call
    ) -> AsyncGenerator[AsyncIterator[list[Chunk]]]:
        async with aclosing(self._stream(request, call)) as pieces:
            # Entered once there is a first piece: until then a failure is still an error with
            # a status of its own, and can be answered by another replica.
            first = await anext(pieces)
            del request
            async with aclosing(_after(first, pieces)) as whole:
                yield whole

    async def count(self, request: Request, call: Call) -> int:
        replica = await self._choose(call.session, self._attempts())
        return await replica.server.count(request)

    async def close(self) -> None:
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self._http.close()

    async def _stream(self, request: Request, call: Call) -> AsyncGenerator[list[Chunk]]:
        attempts, kept = self._attempts(), [request]
        del request
        while True:
            replica = await self._choose(call.session, attempts)
            try:
                with replica.busy():
                    async with replica.server.stream(kept[0], call) as pieces:
                        async for chunks in pieces:
                            # It will not be sent again: its body need not be kept any longer.
                            attempts.delivered = True
                            kept.clear()
                            yield chunks
            except Failed as failure:
                await self._failed(call.session, replica, failure, attempts)
            else:
                replica.answered(_now())
                return

    def _attempts(self) -> "_Attempts":
        return _Attempts(self._clock, self._patience)

    async def _failed(
        self, session: str, replica: Replica, failure: Failed, attempts: "_Attempts"
    ) -> None:
        """Returns where the request may be sent again; raises the failure where not."""
        replica.failed(failure, _now())
        if failure.down:
            self._leave(session, replica)
        if not attempts.allow(failure):
            raise failure
        attempts.tried.add(replica)
        others = any(r.ready(_now()) and r not in attempts.tried for r in self._replicas)
        if not others:
            await asyncio.sleep(attempts.pause(failure))

    async def _choose(self, session: str, attempts: "_Attempts") -> Replica:
        """The session's replica, or another if it is down; waits while all are."""
        known = self._sessions.get(session)
        if known is not None and not attempts.tried and known.ready(_now()):
            self._sessions.move_to_end(session)
            return known
        while True:
            now = _now()
            ready = [replica for replica in self._replicas if replica.ready(now)]
            if ready:
                untried = [replica for replica in ready if replica not in attempts.tried]
                return self._place(session, untried or ready)
            await self._wait(attempts)

    def _place(self, session: str, ready: list[Replica]) -> Replica:
        replica = self._sessions.get(session)
        if replica is None or replica not in ready:
            replica = self._sessions[session] = self._least_loaded(ready)
            if len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(session)
        return replica

    def _leave(self, session: str, replica: Replica) -> None:
        """What the session asks next goes to another: this one may fail it again, and who fails
        at once is the least loaded."""
        if self._sessions.get(session) is not replica:
            return
        now = _now()
        others = [other for other in self._replicas if other is not replica and other.ready(now)]
        if others:
            self._sessions[session] = self._least_loaded(others)
        else:
            del self._sessions[session]

    def _least_loaded(self, ready: list[Replica]) -> Replica:
        replica = min(ready, key=lambda r: (r.in_flight, r.chosen))
        self._turn += 1
        replica.chosen = self._turn
        return replica

    async def _wait(self, attempts: "_Attempts") -> None:
        """Until a replica is back, or may be asked again."""
        left = attempts.left
        if left <= 0:
            reasons = "; ".join(replica.state.last_failure for replica in self._replicas)
            raise Failed("busy", f"no replica of the policy is up: {reasons}")
        times = [r.not_before - _now() for r in self._replicas if r.up]
        self._back.clear()
        try:
            async with asyncio.timeout(max(0.01, min([left, *times]))):
                await self._back.wait()
        except TimeoutError:
            pass

    def _came_back(self) -> None:
        self._back.set()


class _Attempts:
    """How often and how long one request has been tried."""

    def __init__(self, clock: Stopwatch, patience: float) -> None:
        self._clock = clock
        self._until = clock.seconds + patience
        self.tried: set[Replica] = set()
        self.delivered = False
        self._count = 0

    @property
    def left(self) -> float:
        """Seconds of the clock that it may still wait."""
        return self._until - self._clock.seconds

    def allow(self, failure: Failed) -> bool:
        self._count += 1
        in_time = (failure.after or 0) < self.left
        return failure.again and not self.delivered and self._count < TRIES and in_time

    def pause(self, failure: Failed) -> float:
        """How long to wait where the server did not say it: then its replica is left alone."""
        return PAUSE_FIRST * 2 ** (self._count - 1) if failure.after is None else 0.0


async def _after(
    first: list[Chunk], pieces: AsyncGenerator[list[Chunk]]
) -> AsyncGenerator[list[Chunk]]:
    yield first
    async for chunks in pieces:
        yield chunks


def _now() -> float:
    return asyncio.get_running_loop().time()
