"""The chat dialect with OpenAI's own client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from wire_pieces import Served, an_answer, raw_answer, serving

from plimsoll.gateway.completions import Answer, Refusal
from plimsoll.gateway.dialects.chat.dialect import ChatDialect
from plimsoll.trajectories.messages import ToolCall

CHAT = ChatDialect()
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}},
}
CALLS = (ToolCall("c1", "bash", '{"command": "ls"}'), ToolCall("c2", "bash", '{"command": "é"}'))


@asynccontextmanager
async def client_of(
    *answers: Answer | Refusal, **more: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Served]]:
    async with (
        serving(CHAT, "/v1/chat/completions", answers, **more) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as client,
    ):
        yield client, served


@pytest.mark.parametrize("whole", [False, True])
async def test_the_client_reads_a_whole_answer(whole: bool):
    answer = an_answer("looking", *CALLS)
    async with client_of(raw_answer(answer) if whole else answer) as (client, _):
        got = await client.chat.completions.create(model="m", messages=ASKED, tools=[TOOL])
    [choice] = got.choices
    assert (got.model, choice.finish_reason) == ("m", "tool_calls")
    assert choice.message.content == "looking"
    calls = choice.message.tool_calls or []
    made = [
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in calls
        if call.type == "function"
    ]
    assert tuple(made) == CALLS
    assert got.usage is not None and got.usage.total_tokens == 127


@pytest.mark.parametrize("replays", [False, True])
async def test_the_client_reads_a_stream(replays: bool):
    answer = an_answer("hello there, you", *CALLS)
    async with (
        client_of(answer, replays=replays) as (client, _),
        client.chat.completions.stream(
            model="m", messages=ASKED, tools=[TOOL], stream_options={"include_usage": True}
        ) as stream,
    ):
        got = await stream.get_final_completion()
    [choice] = got.choices
    assert choice.message.content == "hello there, you"
    assert [call.function.arguments for call in choice.message.tool_calls or []] == [
        call.arguments for call in CALLS
    ]
    assert choice.finish_reason == "tool_calls"
    assert got.usage is not None and got.usage.prompt_tokens == 120


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("bad_request", openai.BadRequestError),
        ("unsupported", openai.BadRequestError),
        ("context_length", openai.BadRequestError),
        ("budget", openai.BadRequestError),
        ("unauthorized", openai.AuthenticationError),
        ("ended", openai.AuthenticationError),
        ("not_found", openai.NotFoundError),
        ("too_large", openai.APIStatusError),
        ("too_many", openai.RateLimitError),
        ("busy", openai.InternalServerError),
        ("upstream", openai.InternalServerError),
        ("timeout", openai.InternalServerError),
    ],
)
async def test_the_client_raises_the_matching_error(kind: Any, error: Any, stream: bool):
    async with client_of(Refusal(kind, "what, where, what to do", param="messages")) as (client, _):
        with pytest.raises(error) as caught:
            await client.chat.completions.create(model="m", messages=ASKED, stream=stream)
    assert "what, where, what to do" in caught.value.message
    assert caught.value.param == "messages"


async def test_the_client_raises_an_error_in_the_middle_of_a_stream():
    broken = Refusal("upstream", "the upstream closed early")
    async with client_of(an_answer("hello"), breaks=broken) as (client, _):
        stream = await client.chat.completions.create(model="m", messages=ASKED, stream=True)
        with pytest.raises(openai.APIError, match="closed early"):
            async for _chunk in stream:
                pass
