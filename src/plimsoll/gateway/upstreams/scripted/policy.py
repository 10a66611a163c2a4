"""The scripted policy: an in-process upstream that answers by a script or a function."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.chat_server.wire_format import TokenOptions
from plimsoll.gateway.completions import Answer, Chunk, Request
from plimsoll.gateway.upstreams.answers import StreamReader, read_answer
from plimsoll.gateway.upstreams.failures import UpstreamFailure, failure_from_status, invalid_answer
from plimsoll.gateway.upstreams.openai_server import LENGTH_FIELDS
from plimsoll.gateway.upstreams.protocol import CallContext
from plimsoll.gateway.upstreams.replicas import ReplicaState
from plimsoll.gateway.upstreams.scripted.byte_tokens import prompt_ids
from plimsoll.gateway.upstreams.scripted.model import Reply, ScriptedModel
from plimsoll.gateway.upstreams.scripted.request import ScriptedRequest, read_request
from plimsoll.gateway.upstreams.scripted.script import Script, Turn, load_script

__all__ = ["ScriptedPolicy"]

WHERE = "the script"

_ALL_TOKENS = TokenOptions()

_Tokens = Annotated[int, msgspec.Meta(ge=1)]
_tokens: "msgspec.json.Decoder[int | None]" = msgspec.json.Decoder(_Tokens | None)


class ScriptedPolicy:
    """An `Upstream` that returns token ids and log probabilities, and fails where the script says
    so.

    A function is given the request, and returns the text or the `Turn` that answers it.
    """

    def __init__(
        self,
        script: Path | Script | Callable[[ScriptedRequest], Turn | str],
        *,
        pace: float = 0.0,
    ) -> None:
        self._script_model = ScriptedModel(
            load_script(script) if isinstance(script, Path) else script
        )
        self._failed: Counter[str] = Counter()
        self._pace = pace
        """Seconds between the pieces of a stream."""

    @property
    def model(self) -> str:
        return self._script_model.model

    @property
    def streams(self) -> bool:
        return True

    @property
    def replicas(self) -> list[ReplicaState]:
        """One replica that is always up."""
        return [ReplicaState(url=WHERE)]

    async def ready(self) -> Version:
        return FIRST_VERSION

    async def answer(self, request: Request, call: CallContext) -> Answer:
        reply = await self._reply(request, call)
        if self._should_fail(reply):
            raise await _failure(reply)
        return read_answer(WHERE, self._script_model.body(reply, _ALL_TOKENS))

    @asynccontextmanager
    async def stream(
        self, request: Request, call: CallContext
    ) -> AsyncGenerator[AsyncIterator[list[Chunk]]]:
        reply = await self._reply(request, call)
        fails = self._should_fail(reply)
        if fails and not _begins(reply):
            raise await _failure(reply)
        pieces = self._pieces(reply, fails=fails)
        try:
            yield pieces
        finally:
            await pieces.aclose()

    async def count(self, request: Request, call: CallContext) -> int:
        return len(prompt_ids(_parse(request, call)))

    async def close(self) -> None:
        pass

    async def _reply(self, request: Request, call: CallContext) -> Reply:
        reply = self._script_model.reply(_parse(request, call))
        await asyncio.sleep(reply.turn.delay)
        return reply

    async def _pieces(self, reply: Reply, *, fails: bool) -> AsyncGenerator[list[Chunk]]:
        reader = StreamReader(WHERE)
        events = list(self._script_model.events(reply, _ALL_TOKENS))
        for event in events[: len(events) // 2] if fails else events:
            yield [reader.read(event)]
            await asyncio.sleep(self._pace)
        if fails:
            raise await _failure(reply)

    def _should_fail(self, reply: Reply) -> bool:
        if reply.turn.failure is None:
            return False
        self._failed[reply.key] += 1
        return reply.turn.times is None or self._failed[reply.key] <= reply.turn.times


def _parse(request: Request, call: CallContext) -> ScriptedRequest:
    try:
        limit = next(
            (request.settings[name] for name in LENGTH_FIELDS if name in request.settings), None
        )
        tokens = None if limit is None else _tokens.decode(limit)
        return read_request(request.messages, request.tools, call.session, limit=tokens)
    except DECODE_ERRORS as error:
        raise UpstreamFailure("bad_request", f"invalid request: {error}") from error


def _begins(reply: Reply) -> bool:
    """Whether a stream sends pieces before it fails."""
    failure = reply.turn.failure
    return not isinstance(failure, int) and failure not in ("hang", "drop")


async def _failure(reply: Reply) -> UpstreamFailure:
    """The failure that the gateway would report for this fault of a server."""
    failure = reply.turn.failure
    if isinstance(failure, int):
        return failure_from_status(WHERE, failure, b'{"error":{"message":"as the script says"}}')
    if failure in ("hang", "stall", "slow"):
        await asyncio.Event().wait()
    if failure in ("drop", "cut"):
        return UpstreamFailure(
            "upstream", f"the policy at {WHERE} closed the connection", replica_fault=True
        )
    return invalid_answer(WHERE, f"{failure}, as the script says")
