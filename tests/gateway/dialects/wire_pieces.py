"""Answers in an upstream's format, and a server for one dialect, for real clients."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from plimsoll.gateway.completions import (
    Answer,
    CallDelta,
    Chunk,
    Refusal,
    Request,
    Usage,
)
from plimsoll.gateway.dialects.protocol import STATUSES, Dialect
from plimsoll.trajectories.messages import Message, Text, ToolCall
from plimsoll.trajectories.records import Finish

__all__ = ["Served", "an_answer", "chunks_of", "in_pieces", "raw_answer", "refusing", "serving"]


def an_answer(
    text: str = "",
    *calls: ToolCall,
    reasoning: str = "",
    finish: Finish | None = None,
    cached: int = 0,
) -> Answer:
    message = Message(
        "assistant", (Text(text),) if text else (), reasoning=reasoning, calls=tuple(calls)
    )
    usage = Usage(120, 7, cached=cached)
    return Answer(
        id="answer-1",
        message=message,
        finish=finish or ("tool_calls" if calls else "stop"),
        usage=usage,
    )


def raw_answer(answer: Answer, **choice: Any) -> Answer:
    """The answer as one object from a server, with ids and log probabilities."""
    chosen = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": answer.message.text or None,
            "tool_calls": [_call(call) for call in answer.message.calls] or None,
        },
        "finish_reason": answer.finish,
        "logprobs": {
            "content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]
        },
        "token_ids": [1, 2, 3],
        **choice,
    }
    body = {
        "id": answer.id,
        "object": "chat.completion",
        "created": 5,
        "model": "served/model",
        "prompt_token_ids": [4, 5, 6],
        "choices": [chosen],
        "usage": {"prompt_tokens": 120, "completion_tokens": 7, "total_tokens": 127},
    }
    raw = msgspec.json.decode(json.dumps(body), type=dict[str, msgspec.Raw])
    return msgspec.structs.replace(answer, raw=raw)


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def in_pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def chunks_of(
    answer: Answer,
    *,
    stop_reason: str | None = None,
    cut: Callable[[str], list[str]] = in_pieces,
) -> list[Chunk]:
    """The stream of the same answer, with its texts cut by `cut`."""
    message = answer.message
    first = _chunk({"role": "assistant", "content": ""}, prompt_token_ids=[4, 5, 6])
    chunks = [msgspec.structs.replace(first, prompt_ids=[4, 5, 6])]
    for piece in cut(message.reasoning):
        chunks.append(_chunk({"reasoning_content": piece}, reasoning=piece))
    for piece in cut(message.text):
        chunks.append(_chunk({"content": piece}, text=piece))
    for index, call in enumerate(message.calls):
        deltas = [CallDelta(index, call.id, call.name)]
        deltas += [CallDelta(index, arguments=piece) for piece in cut(call.arguments)]
        chunks += [_chunk({"tool_calls": [_delta(delta)]}, calls=[delta]) for delta in deltas]
    finish = "content_filter" if answer.finish == "refused" else answer.finish
    last = _chunk({}, finish_reason=finish, stop_reason=stop_reason)
    last.finish = answer.finish
    usage = b'{"id":"up-1","object":"chat.completion.chunk","created":5,"model":"served/model",'
    usage += b'"choices":[],"usage":{"prompt_tokens":120,"completion_tokens":7,"total_tokens":127}}'
    return [*chunks, last, Chunk(usage, usage=answer.usage, only_usage=True)]


def _delta(delta: CallDelta) -> dict[str, Any]:
    function = {"name": delta.name or None, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id or None, "type": "function", "function": function}


def _chunk(
    delta: dict[str, Any],
    *,
    text: str = "",
    reasoning: str = "",
    calls: Sequence[CallDelta] = (),
    finish_reason: str | None = None,
    stop_reason: str | None = None,
    **top: Any,
) -> Chunk:
    choice = {
        "index": 0,
        "delta": delta,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
        "token_ids": [1],
    }
    body = {
        "id": "up-1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "served/model",
        "choices": [choice],
        **top,
    }
    return Chunk(json.dumps(body).encode(), text, reasoning, calls)


@dataclass
class Served:
    """The address of the server, and its requests."""

    url: str
    requests: list[Request] = field(default_factory=list[Request])


Answering = Callable[[Request], Answer | Refusal]


@asynccontextmanager
async def serving(
    dialect: Dialect,
    path: str,
    answers: Sequence[Answer | Refusal] | Answering,
    *,
    breaks: Refusal | None = None,
    replays: bool = False,
) -> AsyncIterator[Served]:
    """A server for one dialect. `breaks` ends its streams early; `replays` has the whole answer
    before it streams."""
    left = list(answers) if not callable(answers) else []

    async def handle(http: web.Request) -> web.StreamResponse:
        try:
            request = dialect.read(await http.read())
            served.requests.append(request)
            answer = answers(request) if callable(answers) else left.pop(0)
            if isinstance(answer, Refusal):
                raise answer
        except Refusal as refusal:
            return web.Response(
                status=STATUSES[refusal.kind],
                body=dialect.refuse(refusal),
                content_type="application/json",
            )
        if not request.stream:
            body = dialect.write(request, answer)
            return web.Response(body=body, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        stream = dialect.stream(request)
        if replays:
            await response.write(stream.ping() + stream.whole(answer))
            return response
        await response.write(stream.ping() + stream.start())
        for chunk in chunks_of(answer):
            data = stream.chunks([chunk])
            if data:
                await response.write(data + stream.ping())
        ending = stream.fail(breaks) if breaks else stream.end(answer)
        await response.write(ending)
        return response

    app = web.Application()
    app.router.add_post(path, handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    served = Served(f"http://127.0.0.1:{port}")
    try:
        yield served
    finally:
        await runner.cleanup()


def refusing(dialect: Dialect, body: object) -> Refusal:
    """The refusal of a body."""
    try:
        dialect.read(body if isinstance(body, bytes) else json.dumps(body).encode())
    except Refusal as refusal:
        return refusal
    raise AssertionError("it was taken")
