"""Finds out by small requests what a server can return."""

from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import msgspec

from plimsoll.core.unreadable import UNREADABLE
from plimsoll.gateway.forms import Answer, Chunk, NoHistory, Request
from plimsoll.gateway.upstreams.address import normal_url
from plimsoll.gateway.upstreams.capabilities import Capabilities
from plimsoll.gateway.upstreams.failures import Failed, from_exception, from_status, garbage
from plimsoll.gateway.upstreams.openai import CONNECTION_ERRORS, Asks, Server, Waits, http_session
from plimsoll.gateway.upstreams.protocol import Call
from plimsoll.gateway.upstreams.wire import Choice

__all__ = ["examine", "probe"]

CALL = Call("probe")
HELLO = msgspec.Raw(b'[{"role":"user","content":"Say hello."}]')
CALL_IT = msgspec.Raw(b'[{"role":"user","content":"What time is it? Call the tool now."}]')
TOOLS = msgspec.Raw(
    b'[{"type":"function","function":{"name":"now","description":"Tells the time.",'
    b'"parameters":{"type":"object","properties":{"zone":{"type":"string"}}}}}]'
)
CALL_TOKENS = (64, 512)
"""Of an answer that is to hold a call; the second where the first was cut off, as the answers of
models that think before they call are."""
LADDER = (Asks(True, True), Asks(True, False), Asks(False, True), Asks(False, False))
"""What is asked for, the most first: a server may refuse fields that it does not know."""

_CHECK = "Check its URL (it ends in /v1)."


class _Meta(msgspec.Struct):
    n_ctx: int | None = None
    n_ctx_train: int | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    meta: _Meta | None = None
    stream_token_ids: bool = False
    """Whether the server itself says that its streams leave out no id, as Plimsoll's do."""

    @property
    def context(self) -> int | None:
        """The context length: vLLM and SGLang tell it in one place, llama.cpp in another."""
        meta = self.meta or _Meta()
        return self.max_model_len or meta.n_ctx or meta.n_ctx_train


class _Models(msgspec.Struct):
    data: list[_Model] = []


_choices = msgspec.json.Decoder(list[Choice])


async def probe(
    url: str, model: str | None = None, key: str | None = None, *, within: float = 30.0
) -> Capabilities:
    """Asks the server a few small things, each within so many seconds. Raises nothing for a
    server that cannot be used: `problem` says why."""
    try:
        return await examine(url, model, key, within=within)
    except Failed as failure:
        return Capabilities(url=normal_url(url), problem=failure.message)


async def examine(
    url: str, model: str | None = None, key: str | None = None, *, within: float = 30.0
) -> Capabilities:
    """The same, for who has to know how the server failed: raises `Failed` where it did."""
    url = normal_url(url)
    async with http_session() as http:
        listed = await _models(http, url, key, min(within, 10.0))
        if isinstance(listed, Failed) and not model:
            raise listed
        models = [] if isinstance(listed, Failed) else listed
        name = model or (models[0].id if len(models) == 1 else "")
        if not name:
            names = tuple(model.id for model in models)
            told = f"serves {', '.join(names)}" if names else "names no model"
            problem = f"the policy at {url} {told}; name one with --model"
            return Capabilities(url=url, problem=problem, models=names)
        return await _Probe(http, url, name, key, within).run(models)


async def _models(
    http: aiohttp.ClientSession, url: str, key: str | None, within: float
) -> list[_Model] | Failed:
    """The models that a server names, or why it names none: who knows the name can do without.
    Raises what a request for an answer would meet, too."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(within)
    try:
        async with http.get(f"{url}/models", headers=headers, timeout=timeout) as response:
            body = await response.read()
            if response.status in (401, 403):
                raise from_status(url, response.status, body)
            if response.status != 200:
                return _unlisted(url, response.status, body)
            return msgspec.json.decode(body, type=_Models).data
    except UNREADABLE:
        return garbage(url, f"/models is no list of models in JSON. {_CHECK}")
    except CONNECTION_ERRORS as error:
        raise from_exception(url, error) from error


def _unlisted(url: str, status: int, body: bytes) -> Failed:
    failure = from_status(url, status, body)
    # What is said of a bad request speaks to who made it, and does not name the server.
    is_ours = failure.kind in ("bad_request", "context_length")
    return garbage(url, f"/models answered {status}. {_CHECK}") if is_ours else failure


class _Probe:
    """The requests to one model of a server."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, model: str, key: str | None, within: float
    ) -> None:
        self._http = http
        self._url = url
        self._model = model
        self._key = key
        self._waits = Waits(min(within, 10.0), within, within, within)

    async def run(self, models: list[_Model]) -> Capabilities:
        asks, answer = await self._whole()
        tokens = answer.tokens
        asks = Asks(logprobs=asks.logprobs and _has_logprobs(answer), token_ids=tokens is not None)
        stream = await self._stream(asks)
        usage = stream is not None and any(chunk.usage for chunk in stream)
        asks = Asks(asks.logprobs, asks.token_ids, stream_usage=usage)
        found = next((model for model in models if model.id == self._model), _Model(self._model))
        tools = await self._tools(asks, streams=stream is not None)
        if tools.complete and not (tools.called or found.stream_token_ids):
            tools = await self._tools_at_length(asks, tools)
        return Capabilities(
            url=self._url,
            models=tuple(model.id for model in models),
            model=self._model,
            context=found.context,
            text=True,
            logprobs=asks.logprobs,
            token_ids=asks.token_ids,
            prompt_ids=tokens is not None and tokens.prompt is not None,
            streams=stream is not None,
            stream_usage=usage,
            stream_ids=stream is not None and _is_complete(stream, asks),
            tools=tools.accepted,
            calls=tools.called,
            tool_stream_ids=tools.complete and (tools.called or found.stream_token_ids),
            count=await self._count(),
        )

    def _server(self, asks: Asks) -> Server:
        return Server(
            self._http, self._url, model=self._model, key=self._key, asks=asks, waits=self._waits
        )

    async def _whole(self) -> tuple[Asks, Answer]:
        """A whole answer, and what the server let itself be asked for."""
        for asks in LADDER[:-1]:
            with suppress(_Refused):
                return asks, await self._answer(asks)
        return LADDER[-1], await self._server(LADDER[-1]).answer(_request(HELLO), CALL)

    async def _answer(self, asks: Asks) -> Answer:
        try:
            return await self._server(asks).answer(_request(HELLO), CALL)
        except Failed as failure:
            if failure.kind == "bad_request":
                raise _Refused from failure
            raise

    async def _stream(self, asks: Asks) -> list[Chunk] | None:
        """The pieces of a stream; None where the server streams nothing."""
        for usage in (True, False):
            with suppress(Failed):
                asked = Asks(asks.logprobs, asks.token_ids, usage)
                return await self._read(asked, _request(HELLO))
        return None

    async def _read(self, asks: Asks, request: Request) -> list[Chunk]:
        async with self._server(asks).stream(request, CALL) as pieces:
            return [chunk async for chunks in pieces for chunk in chunks]

    async def _tools(self, asks: Asks, *, streams: bool) -> "_Tools":
        request = _request(CALL_IT, TOOLS, tokens=CALL_TOKENS[0])
        try:
            if streams:
                return _tools_in(await self._read(asks, request), asks)
            answer = await self._server(asks).answer(request, CALL)
        except Failed as failure:
            return _Tools(accepted=failure.kind == "timeout")
        return _Tools(called=bool(answer.message.calls))

    async def _tools_at_length(self, asks: Asks, seen: "_Tools") -> "_Tools":
        """The same where no call was seen, but might have been in a longer answer. No call is
        forced: engines take other ways to write one that is."""
        if seen.cut_off:
            with suppress(Failed):
                request = _request(CALL_IT, TOOLS, tokens=CALL_TOKENS[1])
                return _tools_in(await self._read(asks, request), asks)
        return seen

    async def _count(self) -> bool:
        try:
            return await self._server(LADDER[-1]).count(_request(HELLO)) > 0
        except Failed:
            return False


class _Refused(Exception):
    """The server does not want these fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tools:
    """What came of tools on offer."""

    accepted: bool = True
    called: bool = False
    complete: bool = False
    """Whether the stream had all its ids. Engines may lose those of calls alone: without a call
    in it this says nothing."""
    cut_off: bool = False


def _tools_in(chunks: list[Chunk], asks: Asks) -> _Tools:
    return _Tools(
        called=any(chunk.calls for chunk in chunks),
        complete=_is_complete(chunks, asks),
        cut_off=any(chunk.finish == "length" for chunk in chunks),
    )


def _request(messages: msgspec.Raw, tools: msgspec.Raw | None = None, tokens: int = 8) -> Request:
    limit = {"max_tokens": msgspec.Raw(str(tokens).encode())}
    return Request(model="", history=NoHistory(), messages=messages, tools=tools, settings=limit)


def _has_logprobs(answer: Answer) -> bool:
    if answer.logprobs is not None:
        return True
    choices = _choices.decode((answer.raw or {})["choices"])
    logprobs = choices[0].logprobs
    return logprobs is not None and bool(logprobs.content)


def _is_complete(chunks: list[Chunk], asks: Asks) -> bool:
    """Whether a stream has as many ids and log probabilities as it counts tokens."""
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
    if usage is None or not any(chunk.prompt_ids for chunk in chunks):
        return False
    ids = sum(len(chunk.ids or ()) for chunk in chunks)
    logprobs = sum(len(chunk.logprobs or ()) for chunk in chunks)
    return ids == usage.answer and (logprobs == ids or not asks.logprobs)
