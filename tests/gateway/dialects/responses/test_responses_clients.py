"""The Responses dialect with OpenAI's own client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.responses import ToolParam
from wire_pieces import Served, an_answer, serving

from plimsoll.gateway.completions import Answer, Refusal
from plimsoll.gateway.dialects.responses.dialect import ResponsesDialect
from plimsoll.trajectories.messages import ToolCall

RESPONSES = ResponsesDialect()
TOOLS: list[ToolParam] = [
    {
        "type": "function",
        "name": "bash",
        "strict": False,
        "parameters": {"type": "object", "properties": {}},
    },
    {"type": "custom", "name": "patch"},
]
CALLS = (
    ToolCall("c1", "bash", '{"command": "ls"}'),
    ToolCall("c2", "patch", '{"input": "é\\n+ a"}'),
    ToolCall("c3", "bash", '{"command": "é"}'),
)


@asynccontextmanager
async def client_of(
    *answers: Answer | Refusal, **more: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Served]]:
    async with (
        serving(RESPONSES, "/v1/responses", answers, **more) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as client,
    ):
        yield client, served


def content_of(response: Any) -> list[tuple[str, ...]]:
    """The content of a response, by its items."""
    found: list[tuple[str, ...]] = []
    for item in response.output:
        match item.type:
            case "reasoning":
                found.append(("reasoning", "".join(part.text for part in item.summary)))
            case "message":
                found.append(("message", "".join(part.text for part in item.content)))
            case "function_call":
                found.append((item.call_id, item.name, item.arguments))
            case _:
                found.append((item.call_id, item.name, item.input))
    return found


WHOLE = [
    ("reasoning", "let me think"),
    ("message", "hello there, you"),
    ("c1", "bash", '{"command": "ls"}'),
    ("c2", "patch", "é\n+ a"),
    ("c3", "bash", '{"command": "é"}'),
]


def an_example() -> Answer:
    return an_answer("hello there, you", *CALLS, reasoning="let me think", cached=4)


async def test_the_client_reads_a_whole_answer():
    async with client_of(an_example()) as (client, _):
        got = await client.responses.create(model="m", input="hello", tools=TOOLS)
    assert (got.model, got.status, got.output_text) == ("m", "completed", "hello there, you")
    assert content_of(got) == WHOLE
    assert got.usage is not None
    assert (got.usage.input_tokens, got.usage.output_tokens) == (120, 7)
    assert got.usage.input_tokens_details.cached_tokens == 4


@pytest.mark.parametrize("replays", [False, True])
async def test_the_client_reads_a_stream(replays: bool):
    async with (
        client_of(an_example(), replays=replays) as (client, _),
        client.responses.stream(model="m", input="hello", tools=TOOLS) as stream,
    ):
        events = [event async for event in stream]
        got = await stream.get_final_response()
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == "hello there, you"
    assert content_of(got) == WHOLE
    assert got.usage is not None and got.usage.total_tokens == 127


async def test_a_conversation_continues_with_the_clients_own_items():
    async with client_of(an_example(), an_answer("done")) as (client, served):
        history: list[Any] = [{"role": "user", "content": "hello"}]
        got = await client.responses.create(model="m", input=history, tools=TOOLS)
        history += [item.model_dump(exclude_none=True) for item in got.output]
        for call in ("c1", "c2", "c3"):
            kind = "custom_tool_call_output" if call == "c2" else "function_call_output"
            history.append({"type": kind, "call_id": call, "output": "ok"})
        last = await client.responses.create(model="m", input=history, tools=TOOLS)
    assert last.output_text == "done"
    first, second = served.requests
    assert bytes(second.messages).startswith(bytes(first.messages)[:-1])
    answer = second.history.message(1)
    assert (answer.role, answer.text, answer.reasoning) == (
        "assistant",
        "hello there, you",
        "let me think",
    )
    assert [call.id for call in answer.calls] == ["c1", "c2", "c3"]
    assert len(second.history) == 5


async def test_the_client_parses_an_answer_by_its_schema():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with client_of(an_answer('{"a": 1}')) as (client, served):
        got = await client.responses.create(
            model="m",
            input="hello",
            text={"format": {"type": "json_schema", "name": "s", "schema": schema}},
        )
    assert got.output_text == '{"a": 1}'
    assert b'"json_schema"' in bytes(served.requests[0].settings["response_format"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("bad_request", openai.BadRequestError, None),
        ("unsupported", openai.BadRequestError, "unsupported_value"),
        ("context_length", openai.BadRequestError, "context_length_exceeded"),
        ("unauthorized", openai.AuthenticationError, "invalid_api_key"),
        ("too_many", openai.RateLimitError, "rate_limit_exceeded"),
        ("upstream", openai.InternalServerError, "upstream_failed"),
    ],
)
async def test_the_client_raises_the_matching_error(
    kind: Any, error: Any, code: str | None, stream: bool
):
    async with client_of(Refusal(kind, "what, where, what to do", param="input")) as (client, _):
        with pytest.raises(error) as caught:
            await client.responses.create(model="m", input="hello", stream=stream)
    assert "what, where, what to do" in caught.value.message
    assert (caught.value.param, caught.value.code) == ("input", code)


async def test_the_client_sees_an_error_in_the_middle_of_a_stream():
    broken = Refusal("upstream", "the upstream closed early")
    async with client_of(an_answer("hello"), breaks=broken) as (client, _):
        stream = await client.responses.create(model="m", input="hello", stream=True)
        events = [event async for event in stream]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "the upstream closed early"
