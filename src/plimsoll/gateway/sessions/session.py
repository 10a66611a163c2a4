"""A session: one trial's access to the policy.

Invariants:

* An answer is recorded before its last byte is sent, and a retry is never recorded again.
* Every waiting handler is woken when the session ends. Once a request is answered, only its
  trajectory remains in memory.
* The session's clock stops while the policy is paused for new weights, unless a request is still
  being answered. The time limit and the silence of requests are measured by this clock.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.endings import Ending
from plimsoll.core.errors import TrajectoryError
from plimsoll.core.stopwatch import Stopwatch
from plimsoll.gateway.access import Access
from plimsoll.gateway.access_keys import key_digest, new_key
from plimsoll.gateway.body_prefixes import BodyPrefix, BodyPrefixes, Fingerprint
from plimsoll.gateway.completions import Answer, Refusal, Request
from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.media import CheckedHistory, check_media
from plimsoll.gateway.media_hosts import MediaHosts
from plimsoll.gateway.parser_threads import LARGE_BODY_BYTES, run_in_thread
from plimsoll.gateway.sessions.failures import PolicyFailures
from plimsoll.gateway.sessions.handlers import Handlers, session_ended
from plimsoll.gateway.sessions.limits import Budget, Limits
from plimsoll.gateway.sessions.pending_request import (
    FAILURE_OUTCOMES,
    Answered,
    Client,
    PendingRequest,
)
from plimsoll.gateway.sessions.retries import RecentAnswer, RequestIdentity, RetryCache
from plimsoll.gateway.sessions.seeds import Seeds
from plimsoll.gateway.upstreams.gate import Pauses
from plimsoll.gateway.upstreams.protocol import CallContext, Upstream
from plimsoll.gateway.upstreams.request_fields import refuse_location_fields
from plimsoll.trajectories.graph import Place
from plimsoll.trajectories.recorder import Recorder
from plimsoll.trajectories.reported_tokens import Done

__all__ = ["Session"]

log = logging.getLogger(__name__)

COUNT_SECONDS = 60.0
END_SECONDS = 5.0
"""How long the end of a session waits for its handlers."""
STALLED_CLIENT_SECONDS = 300.0
"""How long a client may leave its stream unread."""
LEFT_WHILE_PAUSED = "a client gave up while the policy was paused for new weights"
MAX_TROUBLES = 1000
"""The limit on recorded troubles: an agent in a loop must not fill the disk."""


class Session:
    """The key, limits, recorder and requests in flight of one trial."""

    def __init__(
        self,
        id: str,
        recorder: Recorder,
        upstream: Upstream,
        pauses: Pauses,
        *,
        limits: Limits,
        model: str,
        ids: bool,
        seeds: Seeds | None,
        on_outcome: Callable[[PendingRequest, Answer | Refusal, str], None],
        on_end: Callable[["Session"], None],
    ) -> None:
        self.id = id
        self.limits = limits
        self.model = model
        self.refusal = ""
        """The last refusal of the policy's server; empty once it has answered."""
        self.used = time.monotonic()
        """The time of the last request or answer."""
        self.clock = Stopwatch()
        """The agent's time."""
        self.presence = Handlers(limits.concurrent, limits.body_bytes)
        self._media = MediaHosts(limits.media_hosts)
        self._key = new_key()
        self.digest = key_digest(self._key)
        self._recorder = recorder
        self._upstream = upstream
        self._call = CallContext(id, ids)
        self._seeds = seeds
        self._budget = Budget(limits, self.clock, self._out_of_time)
        self._failures = PolicyFailures()
        self._retries = RetryCache()
        self._openings = BodyPrefixes()
        self._flying: dict[PendingRequest, RequestIdentity] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._troubles = 0
        self._left_silent = 0.0
        self._on_outcome = on_outcome
        self._on_end = on_end
        self._ended: asyncio.Task[Path] | None = None
        self._draining: set[PendingRequest] = set()
        """Requests that a paused policy still answers."""
        self._pauses = pauses
        pauses.follow(self)

    @property
    def exchanges(self) -> int:
        return self._budget.turns

    @property
    def tokens(self) -> int:
        return self._budget.tokens

    @property
    def prompt_tokens(self) -> int:
        return self._budget.prompt_tokens

    @property
    def answer_tokens(self) -> int:
        return self._budget.answer_tokens

    @property
    def ending(self) -> Ending | None:
        """`budget` if a limit was reached, or if the policy's context is full."""
        return Ending.BUDGET if self._budget.spent else None

    @property
    def detail(self) -> str:
        return self._budget.spent

    @property
    def failure(self) -> str:
        """The last failure of the policy; empty once it has answered."""
        return self._failures.last

    @property
    def sealed(self) -> bool:
        return self._ended is not None

    @property
    def out_of_time(self) -> bool:
        return self._budget.out_of_time

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    @property
    def silent_for(self) -> float:
        """Seconds that the policy has been silent on a request, without the time of pauses.

        The maximum over the requests in flight and those abandoned by their clients since the last
        answer.
        """
        return max(self._left_silent, *(each.silence for each in self._flying), 0.0)

    def access(self, port: int, host: str = "127.0.0.1") -> Access:
        return self.access_at(f"http://{host}:{port}")

    def access_at(self, server: str) -> Access:
        return Access(f"{server}/s/{self.id}", self._key, self.model)

    async def ask(
        self, dialect: Dialect, path: str, body: bytes, client: Client
    ) -> PendingRequest | RecentAnswer:
        """Start a call of the upstream, or join or repeat an earlier one with the same bytes.

        A large body is parsed in a thread. Raises `Refusal` for a request that is invalid or over a
        limit.
        """
        large = len(body) > LARGE_BODY_BYTES
        print = await run_in_thread(Fingerprint.of, body) if large else Fingerprint.of(body)
        same = RequestIdentity(path, print)
        if (again := self._admit(same, client)) is not None:
            return again
        known = self._openings.find(body, print)
        if large:
            request, place = await run_in_thread(self._place, dialect, body, known)
            # The session may have ended meanwhile, or the same request may have started.
            if (again := self._admit(same, client)) is not None:
                return again
        else:
            request, place = self._place(dialect, body, known)
        if request.opening is not None:
            self._openings.add(body, print, request.opening, instead=known)
        pending = PendingRequest(
            request,
            dialect,
            place,
            client,
            self.clock,
            record=self._record,
            over=self._over,
        )
        self._flying[pending] = same
        self._retries.begin(same, pending)
        task = pending.start(self._upstream, self._next_call())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pending

    def _next_call(self) -> CallContext:
        return self._call if self._seeds is None else replace(self._call, seed=self._seeds.next())

    def _admit(self, same: RequestIdentity, client: Client) -> PendingRequest | RecentAnswer | None:
        """The request or answer that this request repeats, if any. Raises `Refusal` over a
        limit."""
        if self.sealed:
            raise session_ended()
        self.used = time.monotonic()
        again = self._retries.find(same, client)
        if again is None:
            self._budget.check(len(self._flying))
            self._failures.check()
        return again

    def _place(
        self, dialect: Dialect, body: bytes, known: BodyPrefix | None
    ) -> tuple[Request, Place]:
        """Parse a body and locate it in the message graph. Thread-safe: it only reads the graph,
        and nodes that others add meanwhile are found at the commit."""
        request = dialect.read(body, known)
        refuse_location_fields(request.settings)
        history = CheckedHistory(request.history, self._media)
        return request, self._recorder.place(history, request.tools)

    def refused(self, refusal: Refusal, dialect: str) -> None:
        """Record a request that was refused."""
        if not self.sealed:
            what = "budget" if self._budget.spent == refusal.message else refusal.kind
            self._trouble(what, refusal.message, dialect)

    async def read(self, dialect: Dialect, body: bytes) -> Request:
        """Parse a request that is not an exchange."""

        def checked() -> Request:
            request = dialect.read(body)
            for index in range(len(request.history)):
                check_media(request.history.message(index), self._media)
            return request

        return await run_in_thread(checked) if len(body) > LARGE_BODY_BYTES else checked()

    async def count(self, request: Request) -> int:
        """The number of tokens of a request's prompt."""
        if self.sealed:
            raise session_ended()
        self.used = time.monotonic()
        late = Refusal("timeout", "the upstream did not count the tokens in time")
        async with self.presence.within(COUNT_SECONDS, late):
            return await self._upstream.count(request, self._call)

    async def upkeep(self, now: float, silence: float) -> None:
        """Expire cached answers, and ping the clients that have been silent for `silence`
        seconds."""
        self._retries.expire(now)
        for pending in tuple(self._flying):
            if pending.is_stuck(now, STALLED_CLIENT_SECONDS):
                # A stalled client would block the policy's stream.
                pending.end(
                    Refusal("ended", "the client did not read its answer in time"), "cancelled"
                )
            elif now - pending.heard >= silence:
                await pending.ping(now)

    async def end(self, ending: str = "", detail: str = "") -> Path:
        """Wake and end every handler, and close the trajectory. Idempotent.

        `ending` is the trial's ending, if it is known; the first call sets it.
        """
        if self._ended is None:
            self._ended = asyncio.create_task(self._end(ending, detail))
        return await run_to_completion(asyncio.shield(self._ended))

    def pause(self, *, drains: bool) -> None:
        """Stop the clock for a pause of the policy. If it drains, the clock runs on until the
        requests in flight are answered: the time limit bounds their length."""
        if drains:
            self._draining = {pending for pending in self._flying if pending.sent}
        self._stop_clock()

    def resume(self) -> None:
        """Start the clock: the policy answers again."""
        self._draining.clear()
        self.clock.start()

    def _stop_clock(self) -> None:
        if self._pauses.is_paused and not self._draining:
            self.clock.stop()

    async def _end(self, ending: str, detail: str) -> Path:
        self._pauses.leave(self)
        self._budget.close()
        for pending in tuple(self._flying):
            pending.end(session_ended(), "cancelled")
        await self.presence.clear(END_SECONDS)
        if self._tasks:
            _, deaf = await asyncio.wait(self._tasks, timeout=END_SECONDS)
            if deaf:
                log.warning("%d upstream calls did not stop when cancelled", len(deaf))
        self._retries.clear()
        self._on_end(self)
        if not ending and self.ending is not None:
            ending, detail = self.ending.value, self.detail
        return await self._recorder.close(ending, detail)

    def _record(self, pending: PendingRequest, answered: Answered) -> None:
        answer = answered.answer
        usage = answer.usage
        assert pending.place is not None
        done = Done(
            answer=answer.message,
            finish=answer.finish,
            dialect=pending.dialect.name,
            at=time.time(),
            seconds=answered.seconds,
            version=answered.version,
            versions=answered.versions,
            prompt_tokens=usage.prompt if usage is not None else None,
            answer_tokens=usage.answer if usage is not None else None,
            tokens=answer.tokens,
        )
        try:
            self._recorder.commit(pending.place, done)
        except TrajectoryError as error:
            raise Refusal("upstream", f"the exchange could not be recorded: {error}") from error
        self._budget.add(answer)
        self._failures.clear()
        self.refusal = ""
        self._left_silent = 0.0

    def _over(self, pending: PendingRequest, outcome: Answer | Refusal, what: str) -> None:
        self.used = time.monotonic()
        same = self._flying.pop(pending)
        self._retries.end(same, pending, outcome if isinstance(outcome, Answer) else None)
        if isinstance(outcome, Refusal):
            self._trouble(what, outcome.message, pending.dialect.name)
            self._take_note(pending, outcome, what)
        self._draining.discard(pending)
        self._stop_clock()
        self._on_outcome(pending, outcome, what)

    def _take_note(self, pending: PendingRequest, refusal: Refusal, what: str) -> None:
        """Note the refusal of a request."""
        if what in FAILURE_OUTCOMES:
            self._failures.add(refusal.message, pending.started)
        elif what == "cancelled" and self.clock.is_stopped:
            # The client's timeout was shorter than the pause: not the agent's fault.
            self._failures.add(LEFT_WHILE_PAUSED, pending.started)
        elif what == "cancelled":
            self._left_silent = max(self._left_silent, pending.silence)
        elif what != "budget":
            self.refusal = refusal.message
            if what == "context_length":
                self._budget.overflow(refusal.message)

    def _trouble(self, what: str, detail: str, dialect: str) -> None:
        self._troubles += 1
        if self._troubles > MAX_TROUBLES:
            return
        try:
            self._recorder.trouble(what, detail, dialect)
        except TrajectoryError as error:
            # The agent is answered all the same, but the trajectory can no longer be closed.
            log.error("%s", error)

    def _out_of_time(self, refusal: Refusal) -> None:
        self._trouble("budget", refusal.message, "")
        for pending in tuple(self._flying):
            pending.end(refusal, "budget")
