"""A Chat Completions server like vLLM's: completions, models, health and tokenize."""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

import msgspec
from aiohttp import web

from plimsoll.core.errors import PolicyError
from plimsoll.core.ids import short_id
from plimsoll.gateway.access import key_digest, matches, request_key
from plimsoll.gateway.chat_server.inference_engine import (
    AnswerPiece,
    InferenceEngine,
    Prompt,
    RequestError,
)
from plimsoll.gateway.chat_server.tool_calls import AnswerTexts, StreamedText, read_calls
from plimsoll.gateway.chat_server.wire_format import (
    RequestFields,
    TokenOptions,
    answer_head,
    error_body,
    read_fields,
    read_messages,
    read_tools,
    token_fields,
    usage_of,
)

__all__ = ["ChatServer", "listen"]


@asynccontextmanager
async def listen(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncGenerator[int]:
    """Serve a handler on a port of this host, and yield the port. A client that disconnects cancels
    its handler."""
    runner = web.ServerRunner(web.Server(handle, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class ChatServer:
    """Answers each request. A client that disconnects abandons its answer."""

    def __init__(self, engine: InferenceEngine, key: str | None = None) -> None:
        self._engine = engine
        self._key_digest = None if key is None else key_digest(key)
        self._answer_texts = AnswerTexts()

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._route(http)
        except RequestError as refused:
            return _error(refused.status, refused.message)
        except PolicyError as error:
            return _error(500, str(error))
        except Exception:  # the server's boundary: a 500 for the client, the traceback in the log
            log.exception("unexpected error in a request to the policy")
            return _error(500, "internal error of the policy's server; see its log")

    async def _route(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.path == "/health":
            problem = self._engine.problem
            return _error(503, problem) if problem else web.Response()
        digest = self._key_digest
        if digest is not None and not matches(request_key(http), digest):
            raise RequestError("wrong key", 401)
        match http.method, http.path:
            case "GET", "/v1/models":
                model = {
                    "id": self._engine.name,
                    "object": "model",
                    "max_model_len": self._engine.context,
                    "stream_token_ids": True,
                }
                return _json({"object": "list", "data": [model]})
            case "POST", "/tokenize":
                prompt = await self._prompt(self._read(await http.content.read()))
                count = {"count": len(prompt.ids), "max_model_len": self._engine.context}
                return _json(count | {"tokens": prompt.ids})
            case "POST", "/v1/chat/completions":
                fields = self._read(await http.content.read())
                prompt = await self._prompt(fields)
                self._check_length(len(prompt.ids), fields.limit)
                answer = _AnswerWriter(self._engine, fields, prompt, self._answer_texts)
                return await (answer.stream(http) if fields.stream else answer.whole())
            case _:
                raise RequestError(f"no such route: {http.method} {http.path[:200]}", 404)

    def _read(self, body: bytes) -> RequestFields:
        fields = read_fields(body)
        if fields.model not in ("", self._engine.name):
            raise RequestError(f"the model {fields.model[:200]!r} does not exist", 404)
        return fields

    async def _prompt(self, fields: RequestFields) -> Prompt:
        messages = self._answer_texts.restore(read_messages(fields))
        return await self._engine.prompt(messages, read_tools(fields))

    def _check_length(self, prompt: int, limit: int | None) -> None:
        context = self._engine.context
        if prompt + (limit or 1) > context:
            requested = f"{prompt} in the messages"
            if limit is not None:
                requested += f", {limit} in the answer"
            raise RequestError(
                f"This model's maximum context length is {context} tokens, and the request asks"
                f" for more: {requested}"
            )


class _AnswerWriter:
    """Writes one answer to a client."""

    def __init__(
        self,
        engine: InferenceEngine,
        fields: RequestFields,
        prompt: Prompt,
        answer_texts: AnswerTexts,
    ) -> None:
        self._engine = engine
        self._answer_texts = answer_texts
        self._fields = fields
        self._prompt = prompt
        self._token_options = TokenOptions(
            ids=bool(fields.return_token_ids), logprobs=bool(fields.logprobs)
        )
        self._tools = read_tools(fields) is not None
        kind = "chat.completion.chunk" if fields.stream else "chat.completion"
        self._head = answer_head(kind, short_id(), engine.name, int(time.time()))

    def _pieces(self) -> AsyncGenerator[AnswerPiece, None]:
        fields = self._fields
        return self._engine.generate(self._prompt, fields.sampling, stream=fields.stream)

    async def whole(self) -> web.Response:
        async with aclosing(self._pieces()) as pieces:
            parts = [piece async for piece in pieces]
        answer = _join(parts)
        text, calls = read_calls(answer.text) if self._tools else (answer.text, [])
        if calls:
            self._answer_texts.add(answer.text, calls)
        message: dict[str, object] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [call.to_wire() for call in calls]
        finish = "tool_calls" if calls else answer.finish
        choice = {"index": 0, "message": message, **self._tokens(answer, finish)}
        usage = usage_of(len(self._prompt.ids), len(answer.ids))
        return _json(self._head | {"choices": [choice], "usage": usage} | self._prompt_ids())

    async def stream(self, http: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        async with aclosing(self._events()) as events:
            try:
                async for event in events:
                    if not response.prepared:
                        await response.prepare(http)
                    await response.write(b"data: " + _encode(event) + b"\n\n")
            except PolicyError as error:
                if not response.prepared:
                    raise
                await response.write(b"data: " + _encode(error_body(500, str(error))) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _events(self) -> AsyncGenerator[dict[str, object]]:
        """The events of a stream. Nothing is sent before the engine's first piece: until then a
        failure has an HTTP status."""
        streamed_text, sent_tokens = StreamedText(tools=self._tools), 0
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                if not sent_tokens:
                    first = {"index": 0, "delta": {"role": "assistant", "content": ""}}
                    yield self._head | {"choices": [first]} | self._prompt_ids()
                sent_tokens += len(piece.ids)
                yield self._chunk(piece, streamed_text)
        if self._fields.wants_usage:
            usage = usage_of(len(self._prompt.ids), sent_tokens)
            yield self._head | {"choices": [], "usage": usage}

    def _chunk(self, piece: AnswerPiece, streamed_text: StreamedText) -> dict[str, object]:
        text, finish = streamed_text.add(piece.text), piece.finish
        delta: dict[str, object] = {}
        if finish is not None:
            rest, calls = streamed_text.end()
            text += rest
            if calls:
                self._answer_texts.add(streamed_text.text, calls)
                delta["tool_calls"] = [call.to_wire(index) for index, call in enumerate(calls)]
                finish = "tool_calls"
        if text:
            delta["content"] = text
        choice = {"index": 0, "delta": delta, **self._tokens(piece, finish)}
        return self._head | {"choices": [choice]}

    def _tokens(self, piece: AnswerPiece, finish: str | None) -> dict[str, object]:
        words = self._engine.words(piece.ids) if self._token_options.logprobs else ()
        return token_fields(
            self._token_options, finish, piece.ids, piece.logprobs, words, piece.versions
        )

    def _prompt_ids(self) -> dict[str, object]:
        # The last field, where the gateway finds it fastest to cut it out.
        return {"prompt_token_ids": self._prompt.ids} if self._token_options.ids else {}


def _join(pieces: list[AnswerPiece]) -> AnswerPiece:
    return AnswerPiece(
        text="".join(piece.text for piece in pieces),
        ids=[token for piece in pieces for token in piece.ids],
        logprobs=[value for piece in pieces for value in piece.logprobs],
        versions=[run for piece in pieces for run in piece.versions],
        finish=pieces[-1].finish,
    )


def _json(body: Mapping[str, object]) -> web.Response:
    return web.Response(body=_encode(body), content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return web.Response(
        body=_encode(error_body(status, message)), status=status, content_type="application/json"
    )
