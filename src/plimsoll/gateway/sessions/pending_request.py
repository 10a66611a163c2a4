"""A pending request: one call of the upstream, and the clients that wait for it.

The call runs in its own task, so that a retry can take over from a client that disconnected. It is
cancelled when the last listener leaves. Every listener is woken: with the answer, once it is
recorded, or with a refusal.
"""

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Sequence

import msgspec

from plimsoll.core.ids import short_id
from plimsoll.core.stopwatch import Stopwatch
from plimsoll.core.versions import Version
from plimsoll.gateway.completions import (
    Answer,
    CallDelta,
    Chunk,
    NoHistory,
    Refusal,
    Request,
    Usage,
)
from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.upstreams.protocol import CallContext, Upstream
from plimsoll.trajectories.message_tree import Position
from plimsoll.trajectories.messages import Message, Text, ToolCall
from plimsoll.trajectories.records import Finish
from plimsoll.trajectories.reported_tokens import TokenIds

__all__ = [
    "FAILURE_OUTCOMES",
    "Answered",
    "Client",
    "Listener",
    "PendingRequest",
    "drop_body",
    "internal_error",
]


class _CallBuilder:
    """A tool call whose arguments are still arriving."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    def add(self, delta: CallDelta) -> None:
        self.id = self.id or delta.id
        self.name = self.name or delta.name
        if delta.arguments:
            self.arguments.append(delta.arguments)

    def build(self) -> ToolCall:
        return ToolCall(id=self.id, name=self.name, arguments="".join(self.arguments))


class AnswerBuilder:
    """Collects the pieces of an answer, and counts the tokens of each policy version."""

    def __init__(self, version: Version) -> None:
        self._version = version
        """The version when the request was sent. Versions in the pieces take precedence."""
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _CallBuilder] = {}
        self._finish: Finish | None = None
        self._usage: Usage | None = None
        self._prompt: list[int] | msgspec.Raw | None = None
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._runs: list[tuple[Version, int]] = []

    @property
    def versions(self) -> tuple[tuple[Version, int], ...]:
        return tuple(self._runs)

    def add(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._add(chunk)
            for version, count in chunk.versions or ((self._version, len(chunk.ids or ())),):
                self._count_version(version, count)

    def _count_version(self, version: Version, count: int) -> None:
        if not count:
            return
        if self._runs and self._runs[-1][0] == version:
            count += self._runs.pop()[1]
        self._runs.append((version, count))

    def _add(self, chunk: Chunk) -> None:
        if chunk.text:
            self._texts.append(chunk.text)
        if chunk.reasoning:
            self._reasoning.append(chunk.reasoning)
        for delta in chunk.calls:
            self._calls.setdefault(delta.index, _CallBuilder()).add(delta)
        if chunk.finish is not None:
            self._finish = chunk.finish
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.prompt_ids is not None:
            self._prompt = chunk.prompt_ids
        if chunk.ids:
            self._ids += chunk.ids
        if chunk.logprobs:
            self._logprobs += chunk.logprobs

    def answer(self, id: str) -> Answer:
        """The whole answer. Raises `Refusal` if the stream ended before the answer was complete."""
        if self._finish is None:
            raise Refusal("upstream", "the upstream's stream ended before the answer was complete")
        text = "".join(self._texts)
        message = Message(
            role="assistant",
            parts=(Text(text),) if text else (),
            reasoning="".join(self._reasoning),
            calls=tuple(call.build() for _, call in sorted(self._calls.items())),
        )
        return Answer(
            id=id, message=message, finish=self._finish, usage=self._usage, tokens=self._tokens()
        )

    def _tokens(self) -> TokenIds | None:
        if not self._ids and self._prompt is None:
            return None
        return TokenIds(self._prompt, self._ids, self._logprobs or None)


class Client:
    """The client of a request. Does not keep its connection alive."""

    __slots__ = ("_transport", "delivered", "first_try")

    def __init__(self, transport: asyncio.BaseTransport | None, first_try: bool = False) -> None:
        self._transport = weakref.ref(transport) if transport is not None else None
        self.first_try = first_try
        self.delivered = False
        """Whether the answer was sent completely."""

    @property
    def connected(self) -> bool:
        transport = self._transport() if self._transport is not None else None
        return transport is not None and not transport.is_closing()

    def shares_connection(self, other: "Client") -> bool:
        return self.connected and self._transport == other._transport


_NO_HISTORY = NoHistory()
_NO_MESSAGES = msgspec.Raw(b"[]")


def drop_body(request: Request) -> None:
    """Drop all references to the request's body. The remaining fields suffice to write the
    answer."""
    stop = request.settings.get("stop")
    request.history = _NO_HISTORY
    request.messages = _NO_MESSAGES
    request.tools = None
    request.prefix = None
    # A copy: a slice would keep the whole body alive.
    request.settings = {"stop": stop.copy()} if stop is not None else {}


log = logging.getLogger(__name__)

FAILURE_OUTCOMES = frozenset({"busy", "upstream", "timeout", "internal"})
"""Outcomes that are failures of the policy or of the gateway."""


class Listener:
    """Waits for an answer. It receives the pieces of a stream only if it joined before the first
    one."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()

    async def receive(self, chunks: list[Chunk]) -> None:
        """Receive pieces of the stream. Does nothing once the client is gone."""

    async def ping(self) -> None:
        """Keep the connection alive during silence. Never waits for the client."""


class Answered(msgspec.Struct, frozen=True):
    """An answer, with the versions that generated its tokens."""

    answer: Answer
    version: Version
    """The version when the request was sent: the oldest that can have generated any token."""
    versions: tuple[tuple[Version, int], ...]
    """Runs of (version, number of tokens); empty: all tokens by `version`, as far as known."""
    seconds: float


class PendingRequest:
    """One call of the upstream. `on_answer` stores its answer; `on_settled` gets its outcome."""

    def __init__(
        self,
        request: Request,
        dialect: Dialect,
        position: Position,
        client: Client,
        clock: Stopwatch,
        *,
        on_answer: Callable[["PendingRequest", Answered], None],
        on_settled: Callable[["PendingRequest", Answer | Refusal, str], None],
    ) -> None:
        self.request = request
        self.dialect = dialect
        self.client = client
        """The first client of this request."""
        self.position: Position | None = position
        self.started = time.monotonic()
        self.last_activity = self.started
        """The time of the last piece or ping."""
        self.last_piece = self.started
        """The time of the last piece; before the first one, the time of the request."""
        self.sent = False
        """Whether the upstream was called."""
        self.delivering = False
        """Whether a piece is waiting for its client to read."""
        self._clock = clock
        self._last_piece_clock = clock.seconds
        """Like `last_piece`, by the session's clock."""
        self._on_answer = on_answer
        self._on_settled = on_settled
        self._listeners: list[Listener] = []
        self._stream_listeners: list[Listener] = []
        self._streaming = False
        self._outcome: Answer | Refusal | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def start(self, upstream: Upstream, call: CallContext) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._run(upstream, call))
        return self._task

    async def wait(self, listener: Listener) -> Answer | Refusal:
        """The outcome. Cancel it to leave; the last listener to leave cancels the call."""
        if self._outcome is not None:
            return self._outcome
        self._listeners.append(listener)
        if not self._streaming:
            self._stream_listeners.append(listener)
        try:
            return await listener.outcome
        finally:
            self._leave(listener)

    def _leave(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        if listener in self._stream_listeners:
            self._stream_listeners.remove(listener)
        if not self._listeners:
            self.end(Refusal("ended", "the client disconnected"), "cancelled")

    def end(self, refusal: Refusal, kind: str) -> None:
        """Cancel the call, and wake the listeners with the refusal. Does nothing if it is over."""
        task = self._task
        if self._outcome is None:
            self._settle(refusal, kind)
            if task is not None:
                task.cancel()

    @property
    def silence(self) -> float:
        """Seconds without a piece from the policy, by the session's clock; 0 while a client blocks
        the stream."""
        return 0.0 if self.delivering else self._clock.seconds - self._last_piece_clock

    def is_stalled(self, now: float, seconds: float) -> bool:
        """Whether a client has read nothing of its stream for this long."""
        return self.delivering and now - self.last_piece > seconds

    async def ping(self, now: float) -> None:
        self.last_activity = now
        for listener in tuple(self._listeners):
            await listener.ping()

    def _settle(self, outcome: Answer | Refusal, kind: str) -> None:
        self._outcome = outcome
        self._task = None  # a cancelled task keeps its frames, which refer to this object
        drop_body(self.request)
        self.position = None
        self._on_settled(self, outcome, kind)
        for listener in self._listeners:
            if not listener.outcome.done():
                listener.outcome.set_result(outcome)

    async def _run(self, upstream: Upstream, call: CallContext) -> None:
        outcome: Answer | Refusal
        try:
            answered = await self._ask(upstream, call)
            self._on_answer(self, answered)
            outcome, kind = answered.answer, "ok"
        except Refusal as refusal:
            # Drop the frames: they would keep the request alive.
            refusal.__traceback__ = refusal.__context__ = refusal.__cause__ = None
            outcome, kind = refusal, refusal.kind
        except Exception:  # the boundary of an exchange: an unexpected error becomes a refusal
            log.exception("unexpected error in a request of the %s dialect", self.dialect.name)
            outcome, kind = internal_error(), "internal"
        if self._outcome is None:
            self._settle(outcome, kind)

    async def _ask(self, upstream: Upstream, call: CallContext) -> Answered:
        version = await upstream.ready()
        self.sent = True
        if self.request.stream and upstream.streams:
            builder = await self._stream(upstream, call, version)
            answer = builder.answer(f"chatcmpl-{short_id()}")
            versions = builder.versions
        else:
            answer = await upstream.answer(self.request, call)
            versions = answer.tokens.versions if answer.tokens is not None else ()
        return Answered(answer, version, versions, time.monotonic() - self.started)

    async def _stream(
        self, upstream: Upstream, call: CallContext, version: Version
    ) -> AnswerBuilder:
        # A piece may have been buffered for long. Only the version at the time of sending is
        # certainly not newer than its tokens.
        builder = AnswerBuilder(version)
        async with upstream.stream(self.request, call) as pieces:
            async for chunks in pieces:
                if not self._streaming:
                    self._streaming = True
                    drop_body(self.request)
                self.last_activity = self.last_piece = time.monotonic()
                self._last_piece_clock = self._clock.seconds
                builder.add(chunks)
                self.delivering = True
                for listener in tuple(self._stream_listeners):
                    await listener.receive(chunks)
                self.delivering = False
        return builder


def internal_error() -> Refusal:
    """The refusal for an internal error of the gateway."""
    return Refusal("upstream", "internal error of the gateway; see its log")
