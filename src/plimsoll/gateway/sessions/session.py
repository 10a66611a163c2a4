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
from plimsoll.core.versions import Version
from plimsoll.gateway.access import Access, key_digest, new_key
from plimsoll.gateway.body_prefixes import BodyPrefix, BodyPrefixes, Fingerprint
from plimsoll.gateway.completions import Answer, Refusal, Request
from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.media import CheckedHistory, MediaHosts, check_media
from plimsoll.gateway.parser_threads import LARGE_BODY_BYTES, run_in_thread
from plimsoll.gateway.sessions.handlers import Handlers, session_ended
from plimsoll.gateway.sessions.limits import Budget, Limits
from plimsoll.gateway.sessions.pending_request import (
    FAILURE_OUTCOMES,
    Answered,
    Client,
    PendingRequest,
)
from plimsoll.gateway.sessions.policy_failures import PolicyFailures
from plimsoll.gateway.sessions.retries import (
    RecentAnswer,
    RequestIdentity,
    RetryCache,
)
from plimsoll.gateway.sessions.seeds import Seeds
from plimsoll.gateway.upstreams.gate import Pauses
from plimsoll.gateway.upstreams.protocol import CallContext, Upstream
from plimsoll.gateway.upstreams.request_fields import refuse_location_fields
from plimsoll.trajectories.message_tree import Position
from plimsoll.trajectories.recorder import Recorder
from plimsoll.trajectories.reported_tokens import AnsweredRequest

__all__ = ["Session"]

log = logging.getLogger(__name__)

COUNT_SECONDS = 60.0
END_SECONDS = 5.0
"""The time that the end of a session waits for its handlers."""
STALLED_CLIENT_SECONDS = 300.0
"""The time that a client may leave its stream unread."""
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
        seeds: Seeds | None,
        on_outcome: Callable[[PendingRequest, Answer | Refusal, str], None],
        on_end: Callable[["Session"], None],
    ) -> None:
        self.id = id
        self.limits = limits
        self.model = model
        self.refusal = ""
        """The last refusal of the policy's server; empty once it has answered."""
        self.last_used = time.monotonic()
        """The time of the last request or answer."""
        self.clock = Stopwatch()
        """The agent's time."""
        self.handlers = Handlers(limits.concurrent, limits.body_bytes)
        self._media = MediaHosts(limits.media_hosts)
        self._key = new_key()
        self.digest = key_digest(self._key)
        self._recorder = recorder
        self._upstream = upstream
        self._call = CallContext(id)
        self._seeds = seeds
        self._budget = Budget(limits, self.clock, self._out_of_time)
        self._failures = PolicyFailures()
        self._retries = RetryCache()
        self._prefixes = BodyPrefixes()
        self._in_flight: dict[PendingRequest, RequestIdentity] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._troubles = 0
        self._abandoned_silence = 0.0
        self._on_outcome = on_outcome
        self._on_end = on_end
        self._end_task: asyncio.Task[Path] | None = None
        self._draining: set[PendingRequest] = set()
        """Requests that a paused policy still answers."""
        self._pauses = pauses
        pauses.subscribe(self)

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
    def version_runs(self) -> tuple[tuple[Version, int], ...]:
        """Runs of (version, number of generated tokens) of all recorded exchanges, in order."""
        return self._recorder.version_runs

    @property
    def blobs(self) -> list[Path]:
        """The blobs that the trajectory refers to."""
        return self._recorder.blobs

    @property
    def ending(self) -> Ending | None:
        """`budget` if a limit was reached, or if the policy's context is full."""
        return Ending.BUDGET if self._budget.exhausted else None

    @property
    def detail(self) -> str:
        return self._budget.exhausted

    @property
    def failure(self) -> str:
        """The last failure of the policy; empty once it has answered."""
        return self._failures.last

    @property
    def has_ended(self) -> bool:
        return self._end_task is not None

    @property
    def out_of_time(self) -> bool:
        return self._budget.out_of_time

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def silent_for(self) -> float:
        """Seconds that the policy has been silent on a request, without the time of pauses.

        The maximum over the requests in flight and those abandoned by their clients since the last
        answer.
        """
        return max(self._abandoned_silence, *(pending.silence for pending in self._in_flight), 0.0)

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
        fingerprint = await run_in_thread(Fingerprint.of, body) if large else Fingerprint.of(body)
        identity = RequestIdentity(path, fingerprint)
        if (earlier := self._admit(identity, client)) is not None:
            return earlier
        prefix = self._prefixes.find(body, fingerprint)
        if large:
            request, position = await run_in_thread(self._locate, dialect, body, prefix)
            # The session may have ended meanwhile, or the same request may have started.
            if (earlier := self._admit(identity, client)) is not None:
                return earlier
        else:
            request, position = self._locate(dialect, body, prefix)
        if request.prefix is not None:
            self._prefixes.add(body, fingerprint, request.prefix, replaced=prefix)
        pending = PendingRequest(
            request,
            dialect,
            position,
            client,
            self.clock,
            on_answer=self._on_answered,
            on_settled=self._on_settled,
        )
        self._in_flight[pending] = identity
        self._retries.begin(identity, pending)
        task = pending.start(self._upstream, self._next_call())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pending

    def _next_call(self) -> CallContext:
        return self._call if self._seeds is None else replace(self._call, seed=self._seeds.next())

    def _admit(
        self, identity: RequestIdentity, client: Client
    ) -> PendingRequest | RecentAnswer | None:
        """The request or answer that this request repeats, if any. Raises `Refusal` over a
        limit."""
        if self.has_ended:
            raise session_ended()
        self.last_used = time.monotonic()
        earlier = self._retries.find(identity, client)
        if earlier is None:
            self._budget.check(len(self._in_flight))
            self._failures.check()
        return earlier

    def _locate(
        self, dialect: Dialect, body: bytes, prefix: BodyPrefix | None
    ) -> tuple[Request, Position]:
        """Parse a body and locate it in the message graph. Thread-safe: it only reads the graph,
        and nodes that others add meanwhile are found at the commit."""
        request = dialect.read(body, prefix)
        refuse_location_fields(request.settings)
        history = CheckedHistory(request.history, self._media)
        return request, self._recorder.locate(history, request.tools)

    def refused(self, refusal: Refusal, dialect: str) -> None:
        """Record a request that was refused."""
        if not self.has_ended:
            kind = "budget" if self._budget.exhausted == refusal.message else refusal.kind
            self._trouble(kind, refusal.message, dialect)

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
        if self.has_ended:
            raise session_ended()
        self.last_used = time.monotonic()
        late = Refusal("timeout", "the upstream did not count the tokens in time")
        async with self.handlers.time_limit(COUNT_SECONDS, late):
            return await self._upstream.count(request, self._call)

    async def maintain(self, now: float, silence: float) -> None:
        """Expire cached answers, and ping the clients that have been silent for `silence`
        seconds."""
        self._retries.expire(now)
        for pending in tuple(self._in_flight):
            if pending.is_stalled(now, STALLED_CLIENT_SECONDS):
                # A stalled client would block the policy's stream.
                pending.end(
                    Refusal("ended", "the client did not read its answer in time"), "cancelled"
                )
            elif now - pending.last_activity >= silence:
                await pending.ping(now)

    async def end(self, ending: str = "", detail: str = "") -> Path:
        """Wake and end every handler, and close the trajectory. Idempotent.

        `ending` is the trial's ending, if it is known; the first call sets it.
        """
        if self._end_task is None:
            self._end_task = asyncio.create_task(self._end(ending, detail))
        return await run_to_completion(asyncio.shield(self._end_task))

    def pause(self, *, drains: bool) -> None:
        """Stop the clock for a pause of the policy. If it drains, the clock runs on until the
        requests in flight are answered: the time limit bounds their length."""
        if drains:
            self._draining = {pending for pending in self._in_flight if pending.sent}
        self._stop_clock()

    def resume(self) -> None:
        """Start the clock: the policy answers again."""
        self._draining.clear()
        self.clock.start()

    def _stop_clock(self) -> None:
        if self._pauses.is_paused and not self._draining:
            self.clock.stop()

    async def _end(self, ending: str, detail: str) -> Path:
        self._pauses.unsubscribe(self)
        self._budget.close()
        for pending in tuple(self._in_flight):
            pending.end(session_ended(), "cancelled")
        await self.handlers.close(END_SECONDS)
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=END_SECONDS)
            if stuck:
                log.warning("%d upstream calls did not stop when cancelled", len(stuck))
        self._retries.clear()
        self._on_end(self)
        if not ending and self.ending is not None:
            ending, detail = self.ending.value, self.detail
        return await self._recorder.close(ending, detail)

    def _on_answered(self, pending: PendingRequest, answered: Answered) -> None:
        answer = answered.answer
        usage = answer.usage
        assert pending.position is not None
        answered_request = AnsweredRequest(
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
            self._recorder.commit(pending.position, answered_request)
        except TrajectoryError as error:
            raise Refusal("upstream", f"the exchange could not be recorded: {error}") from error
        self._budget.add(answer)
        self._failures.clear()
        self.refusal = ""
        self._abandoned_silence = 0.0

    def _on_settled(self, pending: PendingRequest, outcome: Answer | Refusal, kind: str) -> None:
        self.last_used = time.monotonic()
        identity = self._in_flight.pop(pending)
        self._retries.end(identity, pending, outcome if isinstance(outcome, Answer) else None)
        if isinstance(outcome, Refusal):
            self._trouble(kind, outcome.message, pending.dialect.name)
            self._note_refusal(pending, outcome, kind)
        self._draining.discard(pending)
        self._stop_clock()
        self._on_outcome(pending, outcome, kind)

    def _note_refusal(self, pending: PendingRequest, refusal: Refusal, kind: str) -> None:
        """Record the refusal of a request as a failure of the policy, as silence of the policy, or
        as a refusal by its server."""
        if kind in FAILURE_OUTCOMES:
            self._failures.add(refusal.message, pending.started)
        elif kind == "cancelled" and self.clock.is_stopped:
            # The client's timeout was shorter than the pause: not the agent's fault.
            self._failures.add(LEFT_WHILE_PAUSED, pending.started)
        elif kind == "cancelled":
            self._abandoned_silence = max(self._abandoned_silence, pending.silence)
        elif kind != "budget":
            self.refusal = refusal.message
            if kind == "context_length":
                self._budget.context_full(refusal.message)

    def _trouble(self, kind: str, detail: str, dialect: str) -> None:
        self._troubles += 1
        if self._troubles > MAX_TROUBLES:
            return
        try:
            self._recorder.trouble(kind, detail, dialect)
        except TrajectoryError as error:
            # The agent is answered all the same, but the trajectory can no longer be closed.
            log.error("%s", error)

    def _out_of_time(self, refusal: Refusal) -> None:
        self._trouble("budget", refusal.message, "")
        for pending in tuple(self._in_flight):
            pending.end(refusal, "budget")
