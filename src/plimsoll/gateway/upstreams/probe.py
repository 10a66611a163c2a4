"""Probes servers with small requests to find their capabilities.

All replicas of a policy are probed before they are used as one. A replica that can do less, or
serves another model, would silently spoil its share of the sessions.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import aiohttp
import msgspec

from plimsoll.core.errors import PolicyError
from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.completions import (
    Answer,
    Chunk,
    NoHistory,
    Request,
)
from plimsoll.gateway.upstreams.answer_fields import Choice
from plimsoll.gateway.upstreams.capabilities import Capabilities, SupportedFields
from plimsoll.gateway.upstreams.failures import (
    UpstreamFailure,
    failure_from_exception,
    failure_from_status,
    invalid_answer,
)
from plimsoll.gateway.upstreams.openai_server import (
    CONNECTION_ERRORS,
    OpenAIServer,
    Timeouts,
    http_session,
    normal_url,
)
from plimsoll.gateway.upstreams.protocol import CallContext

__all__ = ["probe", "probe_replicas", "probe_server"]

CALL = CallContext("probe")
HELLO = msgspec.Raw(b'[{"role":"user","content":"Say hello."}]')
CALL_IT = msgspec.Raw(b'[{"role":"user","content":"What time is it? Call the tool now."}]')
TOOLS = msgspec.Raw(
    b'[{"type":"function","function":{"name":"now","description":"Tells the time.",'
    b'"parameters":{"type":"object","properties":{"zone":{"type":"string"}}}}}]'
)
CALL_TOKENS = (64, 512)
"""Token limits of an answer that should contain a call. The second is for answers cut off by the
first, of models that reason before they call.
"""
FIELD_SETS = (
    SupportedFields(True, True),
    SupportedFields(True, False),
    SupportedFields(False, True),
    SupportedFields(False, False),
)
"""Combinations of optional fields, the most first: a server may reject unknown fields."""

_CHECK = "Check its URL (it ends in /v1)."


class _Meta(msgspec.Struct):
    n_ctx: int | None = None
    n_ctx_train: int | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    meta: _Meta | None = None
    stream_token_ids: bool = False
    """Whether the server declares that its streams report all token ids, as Plimsoll's do."""

    @property
    def context(self) -> int | None:
        """The context length: vLLM and SGLang report it in one field, llama.cpp in another."""
        meta = self.meta or _Meta()
        return self.max_model_len or meta.n_ctx or meta.n_ctx_train


class _Models(msgspec.Struct):
    data: list[_Model] = []


_choices = msgspec.json.Decoder(list[Choice])


async def probe(
    url: str, model: str | None = None, key: str | None = None, *, within: float = 30.0
) -> Capabilities:
    """Probe a server; `within` limits each request. Never raises for an unusable server: `problem`
    has the reason."""
    try:
        return await probe_server(url, model, key, within=within)
    except UpstreamFailure as failure:
        return Capabilities(url=normal_url(url), problem=failure.message)


async def probe_server(
    url: str, model: str | None = None, key: str | None = None, *, within: float = 30.0
) -> Capabilities:
    """Like `probe`, but raises `UpstreamFailure` if the server fails."""
    url = normal_url(url)
    async with http_session() as http:
        listed = await _models(http, url, key, min(within, 10.0))
        if isinstance(listed, UpstreamFailure) and not model:
            raise listed
        models = [] if isinstance(listed, UpstreamFailure) else listed
        name = model or (models[0].id if len(models) == 1 else "")
        if not name:
            names = tuple(model.id for model in models)
            listing = f"serves {', '.join(names)}" if names else "names no model"
            problem = f"the policy at {url} {listing}; name one with --model"
            return Capabilities(url=url, problem=problem, models=names)
        return await _Probe(http, url, name, key, within).run(models)


async def _models(
    http: aiohttp.ClientSession, url: str, key: str | None, within: float
) -> list[_Model] | UpstreamFailure:
    """The models that a server lists, or why it lists none, which is no problem if the name is
    configured. Raises errors that a request for an answer would hit as well."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(within)
    try:
        async with http.get(f"{url}/models", headers=headers, timeout=timeout) as response:
            body = await response.read()
            if response.status in (401, 403):
                raise failure_from_status(url, response.status, body)
            if response.status != 200:
                return _listing_failure(url, response.status, body)
            return msgspec.json.decode(body, type=_Models).data
    except DECODE_ERRORS:
        return invalid_answer(url, f"/models did not return a JSON list of models. {_CHECK}")
    except CONNECTION_ERRORS as error:
        raise failure_from_exception(url, error) from error


def _listing_failure(url: str, status: int, body: bytes) -> UpstreamFailure:
    failure = failure_from_status(url, status, body)
    # The message of a bad request is meant for its sender, and does not name the server.
    is_request_error = failure.kind in ("bad_request", "context_length")
    return (
        invalid_answer(url, f"/models answered {status}. {_CHECK}") if is_request_error else failure
    )


class _Probe:
    """The probing requests to one model of a server."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, model: str, key: str | None, within: float
    ) -> None:
        self._http = http
        self._url = url
        self._model = model
        self._key = key
        self._timeouts = Timeouts(min(within, 10.0), within, within, within)

    async def run(self, models: list[_Model]) -> Capabilities:
        supported, answer = await self._whole()
        tokens = answer.tokens
        supported = SupportedFields(
            logprobs=supported.logprobs and _has_logprobs(answer), token_ids=tokens is not None
        )
        stream = await self._stream(supported)
        usage = stream is not None and any(chunk.usage for chunk in stream)
        supported = SupportedFields(supported.logprobs, supported.token_ids, stream_usage=usage)
        found = next((model for model in models if model.id == self._model), _Model(self._model))
        tools = await self._tools(supported, streams=stream is not None)
        if tools.complete and not (tools.called or found.stream_token_ids):
            tools = await self._tools_in_longer_answer(supported, tools)
        return Capabilities(
            url=self._url,
            models=tuple(model.id for model in models),
            model=self._model,
            context=found.context,
            text=True,
            logprobs=supported.logprobs,
            token_ids=supported.token_ids,
            prompt_ids=tokens is not None and tokens.prompt is not None,
            streams=stream is not None,
            stream_usage=usage,
            stream_ids=stream is not None and _is_complete(stream, supported),
            tools=tools.accepted,
            calls=tools.called,
            tool_stream_ids=tools.complete and (tools.called or found.stream_token_ids),
            count=await self._count(),
        )

    def _server(self, supported: SupportedFields) -> OpenAIServer:
        return OpenAIServer(
            self._http,
            self._url,
            model=self._model,
            key=self._key,
            supported=supported,
            timeouts=self._timeouts,
        )

    async def _whole(self) -> tuple[SupportedFields, Answer]:
        """A whole answer, and the optional fields that the server accepted."""
        for supported in FIELD_SETS[:-1]:
            with suppress(_FieldsRefused):
                return supported, await self._answer(supported)
        return FIELD_SETS[-1], await self._server(FIELD_SETS[-1]).answer(_request(HELLO), CALL)

    async def _answer(self, supported: SupportedFields) -> Answer:
        try:
            return await self._server(supported).answer(_request(HELLO), CALL)
        except UpstreamFailure as failure:
            if failure.kind == "bad_request":
                raise _FieldsRefused from failure
            raise

    async def _stream(self, supported: SupportedFields) -> list[Chunk] | None:
        """The pieces of a stream; None if the server does not stream."""
        for usage in (True, False):
            with suppress(UpstreamFailure):
                asked = SupportedFields(supported.logprobs, supported.token_ids, usage)
                return await self._read(asked, _request(HELLO))
        return None

    async def _read(self, supported: SupportedFields, request: Request) -> list[Chunk]:
        async with self._server(supported).stream(request, CALL) as pieces:
            return [chunk async for chunks in pieces for chunk in chunks]

    async def _tools(self, supported: SupportedFields, *, streams: bool) -> "_ToolSupport":
        request = _request(CALL_IT, TOOLS, tokens=CALL_TOKENS[0])
        try:
            if streams:
                return _tool_support(await self._read(supported, request), supported)
            answer = await self._server(supported).answer(request, CALL)
        except UpstreamFailure as failure:
            return _ToolSupport(accepted=failure.kind == "timeout")
        return _ToolSupport(called=bool(answer.message.calls))

    async def _tools_in_longer_answer(
        self, supported: SupportedFields, shorter: "_ToolSupport"
    ) -> "_ToolSupport":
        """Try a longer answer if no call was seen and the answer was cut off. The call is not
        forced: servers generate forced calls in another way."""
        if shorter.cut_off:
            with suppress(UpstreamFailure):
                request = _request(CALL_IT, TOOLS, tokens=CALL_TOKENS[1])
                return _tool_support(await self._read(supported, request), supported)
        return shorter

    async def _count(self) -> bool:
        try:
            return await self._server(FIELD_SETS[-1]).count(_request(HELLO)) > 0
        except UpstreamFailure:
            return False


class _FieldsRefused(Exception):
    """The server rejected the optional fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolSupport:
    """The result of offering a tool."""

    accepted: bool = True
    called: bool = False
    complete: bool = False
    """Whether the stream reported all ids. Servers may omit the ids of calls only, so this means
    little without a call."""
    cut_off: bool = False


def _tool_support(chunks: list[Chunk], supported: SupportedFields) -> _ToolSupport:
    return _ToolSupport(
        called=any(chunk.calls for chunk in chunks),
        complete=_is_complete(chunks, supported),
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


def _is_complete(chunks: list[Chunk], supported: SupportedFields) -> bool:
    """Whether a stream has as many ids and log probabilities as it counts tokens."""
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
    if usage is None or not any(chunk.prompt_ids for chunk in chunks):
        return False
    ids = sum(len(chunk.ids or ()) for chunk in chunks)
    logprobs = sum(len(chunk.logprobs or ()) for chunk in chunks)
    return ids == usage.answer and (logprobs == ids or not supported.logprobs)


log = logging.getLogger(__name__)

COMPARED_FIELDS = {
    "model": "the model",
    "context": "the context",
    "tools": "tools",
    "logprobs": "log probabilities",
    "token_ids": "token ids of answers",
    "prompt_ids": "token ids of prompts",
    "streams": "streams",
    "stream_usage": "the usage in streams",
    "count": "counting of tokens",
}
"""The fields that must be equal on all replicas. Whether streams have all ids may depend on the
sampled text, so there the minimum counts.
"""


async def probe_replicas(
    bases: Sequence[str], model: str | None = None, key: str | None = None
) -> Capabilities:
    """The common capabilities of all replicas. Warns of an unavailable replica, which is used once
    it is up. Raises `PolicyError` if none is up, or if one differs from the others."""
    results = await _probe_all(bases, model, key)
    if _difference(results):
        # A server under load may fail a probe for a moment: a difference must show up twice.
        results = await _probe_all(bases, model, key)
    usable = _usable(results)
    if not usable:
        raise PolicyError("; ".join(map(_problem, results)))
    if problem := _difference(results):
        raise PolicyError(problem)
    for result in results:
        if _is_unavailable(result):
            log.warning("%s; it is not used until it is up", _problem(result))
    return replace(
        usable[0],
        stream_ids=all(result.stream_ids for result in usable),
        tool_stream_ids=all(result.tool_stream_ids for result in usable),
    )


async def _probe_all(
    bases: Sequence[str], model: str | None, key: str | None
) -> list[Capabilities | UpstreamFailure]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_probe_one(base, model, key)) for base in bases]
    return [task.result() for task in tasks]


async def _probe_one(
    base: str, model: str | None, key: str | None
) -> Capabilities | UpstreamFailure:
    try:
        return await probe_server(base, model, key)
    except UpstreamFailure as failure:
        return failure


def _problem(result: Capabilities | UpstreamFailure) -> str:
    return result.message if isinstance(result, UpstreamFailure) else result.problem


def _is_unavailable(result: Capabilities | UpstreamFailure) -> bool:
    """Whether the replica may come up later: it is unreachable, busy, or does not answer."""
    return isinstance(result, UpstreamFailure) and (result.retryable or result.kind == "timeout")


def _usable(results: Sequence[Capabilities | UpstreamFailure]) -> list[Capabilities]:
    return [result for result in results if isinstance(result, Capabilities) and not result.problem]


def _difference(results: Sequence[Capabilities | UpstreamFailure]) -> str:
    """The problem of a replica that is up but not usable, or differs from the first usable one."""
    usable = _usable(results)
    if not usable:
        return ""
    first = usable[0]
    for result in results:
        if _problem(result) and not _is_unavailable(result):
            return f"{_problem(result)} (the replica at {first.url} works)"
    return next((found for other in usable[1:] if (found := _differing(first, other))), "")


def _differing(first: Capabilities, other: Capabilities) -> str:
    differing = [
        f"{name} ({_shown(getattr(other, field))}, not {_shown(getattr(first, field))})"
        for field, name in COMPARED_FIELDS.items()
        if getattr(other, field) != getattr(first, field)
    ]
    if not differing:
        return ""
    return (
        f"the policy at {other.url} differs from the one at {first.url} in "
        f"{', '.join(differing)}; configure all replicas alike, or remove one"
    )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)
