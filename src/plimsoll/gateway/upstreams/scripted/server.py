"""A scripted policy as a Chat Completions server, with injected faults.

It answers as vLLM does, or as a server with fewer features. For tests, demos and benchmarks.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from aiohttp import web

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.chat_server.inference_engine import RequestError
from plimsoll.gateway.chat_server.server import listen
from plimsoll.gateway.chat_server.wire_format import (
    RequestFields,
    TokenOptions,
    error_body,
    read_fields,
)
from plimsoll.gateway.upstreams.scripted.byte_tokens import prompt_ids
from plimsoll.gateway.upstreams.scripted.model import Reply, ScriptedModel
from plimsoll.gateway.upstreams.scripted.request import ScriptedRequest, read_request
from plimsoll.gateway.upstreams.scripted.script import Fault, Script, Turn

__all__ = ["ScriptedServer", "ServerFeatures", "serve_script"]

SLOW_BYTES = 7
SLOW_PAUSE = 0.002
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class ServerFeatures:
    """The features of the server."""

    logprobs: bool = True
    token_ids: bool = True
    stream_ids: bool = True
    """Whether streams carry token ids. SGLang's do not."""
    stream_call_ids: bool = True
    """Whether the pieces of tool calls carry token ids. Some versions of vLLM omit them."""
    declares_ids: bool = True
    """Whether it declares that its streams have all ids; no inference server does."""
    tools: bool = True
    call_ids: bool = True
    """Whether tool calls have ids."""
    count: bool = True
    health: bool = True
    strict: bool = False
    """Whether it rejects unknown fields."""
    context: int = 1_000_000
    other_models: tuple[str, ...] = ()
    """Other models that it lists."""

    @property
    def declares_all_ids(self) -> bool:
        return self.declares_ids and self.stream_ids and self.stream_call_ids


class ScriptedServer:
    """One server, with its settings and counters."""

    def __init__(
        self,
        script: Script | Callable[[ScriptedRequest], Turn | str],
        features: ServerFeatures | None = None,
    ) -> None:
        self.script_model = ScriptedModel(script)
        self.features = features or ServerFeatures()
        self.url = ""
        self.faults: deque[Fault | int] = deque()
        """Faults of the next requests, one each, before those of the script."""
        self.healthy = True
        """The result of `/health`."""
        self.pace = 0.0
        """Seconds between the pieces of a stream."""
        self.retry_after = ""
        self.key = ""
        """The required key, if any."""
        self.requests = 0
        self.in_flight = 0
        self.disconnects = 0
        """Requests whose client disconnected before the answer was complete."""
        self.fields: list[str] = []
        """The fields of the last request."""
        self._failed: Counter[str] = Counter()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, "invalid key")
        match request.path:
            case "/v1/chat/completions":
                return await self._counted(request)
            case "/v1/models":
                entry = {"object": "model", "max_model_len": self.features.context}
                entry["stream_token_ids"] = self.features.declares_all_ids
                names = (self.script_model.model, *self.features.other_models)
                return web.json_response({"data": [{"id": name, **entry} for name in names]})
            case "/health" if self.features.health:
                return web.Response(status=200 if self.healthy else 503)
            case "/tokenize" if self.features.count:
                fields = read_fields(await request.content.read())
                ids = prompt_ids(read_request(fields.messages, fields.tools))
                return web.json_response({"count": len(ids), "tokens": ids})
            case _:
                return _error(404, "Not Found")

    async def _counted(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        self.in_flight += 1
        try:
            return await self._complete(request)
        except (asyncio.CancelledError, ConnectionError):
            self.disconnects += 1
            raise
        finally:
            self.in_flight -= 1

    async def _complete(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        self.fields = sorted(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
        try:
            fields = read_fields(body)
            asked = read_request(fields.messages, fields.tools, limit=fields.limit)
        except (RequestError, *DECODE_ERRORS) as error:
            return _error(400, str(error))
        refused = self._refused(fields)
        if refused:
            return _error(400, refused)
        reply = self.script_model.reply(asked)
        if len(reply.prompt) + (fields.limit or 0) > self.features.context:
            message = f"This model's maximum context length is {self.features.context} tokens."
            return _error(400, message)
        await asyncio.sleep(reply.turn.delay)
        fault = self._fault(reply)
        if isinstance(fault, int):
            headers = {"Retry-After": self.retry_after} if self.retry_after else None
            return _error(fault, "as the script says", headers)
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "drop":
            return _abort(request)
        return await self._send(request, fields, reply, fault)

    async def _send(
        self, request: web.BaseRequest, fields: RequestFields, reply: Reply, fault: Fault | None
    ) -> web.StreamResponse:
        options = TokenOptions(
            ids=bool(fields.return_token_ids)
            and self.features.token_ids
            and (self.features.stream_ids or not fields.stream),
            logprobs=bool(fields.logprobs) and self.features.logprobs,
        )
        if fields.stream:
            events = [
                self._apply_features(event)
                for event in self.script_model.events(reply, options, usage=fields.wants_usage)
            ]
            pieces = [b"data: %s\n\n" % _corrupted(event, fault) for event in events]
            kind, parts = "text/event-stream", [*pieces, DONE]
        else:
            body = _corrupted(self._apply_features(self.script_model.body(reply, options)), fault)
            kind, parts = "application/json", [body[: len(body) // 2], body[len(body) // 2 :]]
        if fault == "slow":
            whole = b"".join(parts)
            parts = [whole[at : at + SLOW_BYTES] for at in range(0, len(whole), SLOW_BYTES)]
        return await self._write(request, kind, parts, fault)

    async def _write(
        self, request: web.BaseRequest, kind: str, parts: list[bytes], fault: Fault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        if kind == "application/json":
            response.content_length = sum(len(part) for part in parts)
        await response.prepare(request)
        broken = fault in ("cut", "stall", "half-event")
        for part in parts[: len(parts) // 2] if broken else parts:
            await response.write(part)
            await asyncio.sleep(SLOW_PAUSE if fault == "slow" else self.pace)
        if fault == "half-event":
            half = parts[len(parts) // 2]
            await response.write(half[: len(half) // 2])
        elif fault == "stall":
            await asyncio.Event().wait()
        elif fault == "cut" and request.transport is not None:
            request.transport.close()
        await response.write_eof()
        return response

    def _apply_features(self, data: bytes) -> bytes:
        if not self.features.stream_call_ids:
            data = _without_token_ids(data)
        return data if self.features.call_ids else _without_call_ids(data)

    def _refused(self, fields: RequestFields) -> str:
        features = self.features
        if features.strict and fields.return_token_ids and not features.token_ids:
            return "Unrecognized request argument: return_token_ids"
        if features.strict and fields.logprobs and not features.logprobs:
            return "logprobs are not supported"
        if bytes(fields.tools) and not features.tools:
            return "tool choice requires --enable-auto-tool-choice and --tool-call-parser"
        return ""

    def _fault(self, reply: Reply) -> Fault | int | None:
        if self.faults:
            return self.faults.popleft()
        turn = reply.turn
        self._failed[reply.key] += turn.failure is not None
        over = turn.times is not None and self._failed[reply.key] > turn.times
        return None if over else turn.failure


@asynccontextmanager
async def serve_script(
    script: Script | Callable[[ScriptedRequest], Turn | str],
    features: ServerFeatures | None = None,
    *,
    port: int = 0,
) -> AsyncGenerator[ScriptedServer]:
    """Serve a script on the loopback address."""
    server = ScriptedServer(script, features)
    async with listen(server.handle, port=port) as found:
        server.url = f"http://127.0.0.1:{found}/v1"
        yield server


def _corrupted(data: bytes, fault: Fault | None) -> bytes:
    if fault == "garbage":
        return data[: len(data) // 2] + b"<html>"
    if fault == "bad-call":
        return _without_call_names(data)
    return data


def _without_call_names(data: bytes) -> bytes:
    call = {"index": 0, "id": "call_0_bad", "type": "function", "function": {"arguments": "{}"}}
    body = msgspec.json.decode(data)
    for choice in body["choices"]:
        message = choice.get("message", choice.get("delta"))
        message["tool_calls"] = [call]
    return msgspec.json.encode(body)


def _without_call_ids(data: bytes) -> bytes:
    body = msgspec.json.decode(data)
    for choice in body["choices"]:
        for call in choice.get("message", choice.get("delta")).get("tool_calls", ()):
            call.pop("id", None)
    return msgspec.json.encode(body)


def _without_token_ids(data: bytes) -> bytes:
    """A piece of a stream without its token ids, if it is a piece of a call."""
    body = msgspec.json.decode(data)
    for choice in body["choices"]:
        if "tool_calls" in choice.get("delta", ()):
            choice.pop("token_ids", None)
    return msgspec.json.encode(body)


def _abort(request: web.BaseRequest) -> web.StreamResponse:
    """Abort the connection of the request."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(error_body(status, message), status=status, headers=headers)
