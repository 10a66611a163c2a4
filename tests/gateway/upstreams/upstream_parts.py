"""Requests and servers shared by the tests of upstreams."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from plimsoll.core.stopwatch import Stopwatch
from plimsoll.gateway.completions import Answer, Chunk, Request
from plimsoll.gateway.upstreams.capabilities import SupportedFields
from plimsoll.gateway.upstreams.openai_server import (
    OpenAIServer,
    Timeouts,
    http_session,
)
from plimsoll.gateway.upstreams.protocol import CallContext, Upstream
from plimsoll.gateway.upstreams.replicas import Replicas
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.gateway.upstreams.scripted.server import ScriptedServer

CALL = CallContext("session-1")

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}

HELLO = Script(turns=(Turn(text="Hello, this is what the policy says."),))


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def ask(
    *messages: dict[str, object], tools: list[dict[str, object]] | None = None, **settings: object
) -> Request:
    return Request(
        model="policy",
        history=[],  # type: ignore[arg-type]
        messages=raw(messages or [user("hi")]),
        tools=raw(tools) if tools else None,
        settings={name: raw(value) for name, value in settings.items()},
    )


def sent_back(answer: Answer, *, reasoning: bool = False) -> dict[str, object]:
    """An answer as an agent sends it back in its next request."""
    message: dict[str, object] = {"role": "assistant", "content": answer.message.text or None}
    if reasoning:
        message["reasoning_content"] = answer.message.reasoning
    if answer.message.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.message.calls
        ]
    return message


def result(answer: Answer, text: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": answer.message.calls[0].id, "content": text}


async def streamed(
    upstream: Upstream | OpenAIServer | Replicas, request: Request, call: CallContext = CALL
):
    """All pieces of a stream."""
    chunks: list[Chunk] = []
    async with upstream.stream(request, call) as pieces:
        async for some in pieces:
            chunks.extend(some)
    return chunks


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@asynccontextmanager
async def client(
    server: ScriptedServer,
    *,
    supported: SupportedFields | None = None,
    timeouts: Timeouts | None = None,
    key=None,
) -> AsyncIterator[OpenAIServer]:
    async with http_session() as http:
        yield OpenAIServer(
            http, server.url, model="scripted", supported=supported, timeouts=timeouts, key=key
        )


@asynccontextmanager
async def replicas(
    *servers: ScriptedServer | str,
    patience: float = 10.0,
    timeouts: Timeouts | None = None,
    clock: Stopwatch | None = None,
) -> AsyncIterator[Replicas]:
    http = http_session()
    urls = [server if isinstance(server, str) else server.url for server in servers]
    made = [OpenAIServer(http, url, model="scripted", timeouts=timeouts) for url in urls]
    upstream = Replicas(http, made, patience=patience, clock=clock)
    try:
        yield upstream
    finally:
        await upstream.close()


def ids_of(given: list[int] | msgspec.Raw | None) -> list[int]:
    """The ids of a prompt, which may be raw JSON."""
    assert given is not None
    return given if isinstance(given, list) else msgspec.json.decode(given)
