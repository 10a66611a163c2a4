"""The dialect of Anthropic's Messages with Anthropic's own client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from wire_pieces import Served, an_answer, raw_answer, serving

from plimsoll.gateway.completions import Answer, Refusal
from plimsoll.gateway.dialects.messages.dialect import MessagesDialect
from plimsoll.trajectories.messages import Message, Text, ToolCall

MESSAGES = MessagesDialect()
CALLS = (ToolCall("c1", "bash", '{"command": "ls"}'), ToolCall("c2", "bash", '{"command": "é"}'))
ANSWER = an_answer("hello there, you", *CALLS, reasoning="hm, let me see", cached=100)
ASKED: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4000,
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "messages": [{"role": "user", "content": "hello"}],
    "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
}


@asynccontextmanager
async def client_of(
    *answers: Answer | Refusal, **more: Any
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Served]]:
    async with (
        serving(MESSAGES, "/v1/messages", answers, **more) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client,
    ):
        yield client, served


def check(got: anthropic.types.Message) -> None:
    thought, text, first, second = got.content
    assert thought.type == "thinking" and thought.thinking == "hm, let me see"
    assert text.type == "text" and text.text == "hello there, you"
    assert first.type == "tool_use" and first.input == {"command": "ls"}
    assert second.type == "tool_use" and (second.id, second.input) == ("c2", {"command": "é"})
    assert (got.model, got.stop_reason) == ("m", "tool_use")
    assert (got.usage.input_tokens, got.usage.output_tokens) == (20, 7)
    assert got.usage.cache_read_input_tokens == 100


@pytest.mark.parametrize("whole", [False, True])
async def test_the_client_reads_a_whole_answer(whole: bool):
    async with client_of(raw_answer(ANSWER) if whole else ANSWER) as (client, _):
        check(await client.messages.create(**ASKED))


@pytest.mark.parametrize("replays", [False, True])
async def test_the_client_reads_a_stream(replays: bool):
    async with (
        client_of(ANSWER, replays=replays) as (client, _),
        client.messages.stream(**ASKED) as stream,
    ):
        check(await stream.get_final_message())


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_sends_back_the_policys_answer_unchanged(stream: bool):
    async with client_of(ANSWER, an_answer("done")) as (client, served):
        if stream:
            async with client.messages.stream(**ASKED) as events:
                got = await events.get_final_message()
        else:
            got = await client.messages.create(**ASKED)
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": block.name}
            for block in got.content
            if block.type == "tool_use"
        ]
        answered = {"role": "assistant", "content": got.content}
        again = [*ASKED["messages"], answered, {"role": "user", "content": results}]
        await client.messages.create(**{**ASKED, "messages": again})
    history = served.requests[1].history
    back = history.message(1)
    assert (back.text, back.reasoning) == (ANSWER.message.text, ANSWER.message.reasoning)
    assert [(call.id, call.name) for call in back.calls] == [("c1", "bash"), ("c2", "bash")]
    assert history.message(2) == Message("tool", (Text("bash"),), call_id="c1")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_with_invalid_arguments_still_reaches_the_client(stream: bool):
    broken = an_answer("", ToolCall("c1", "bash", '{"command": "ls'), finish="length")
    async with client_of(broken) as (client, _):
        if stream:
            async with client.messages.stream(**ASKED) as events:
                got = await events.get_final_message()
        else:
            got = await client.messages.create(**ASKED)
    [block] = got.content
    assert block.type == "tool_use"
    assert block.input == {"_invalid_arguments": '{"command": "ls'}
    assert got.stop_reason == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "error", "name"),
    [
        ("bad_request", anthropic.BadRequestError, "invalid_request_error"),
        ("unsupported", anthropic.BadRequestError, "invalid_request_error"),
        ("budget", anthropic.BadRequestError, "invalid_request_error"),
        ("context_length", anthropic.BadRequestError, "invalid_request_error"),
        ("unauthorized", anthropic.AuthenticationError, "authentication_error"),
        ("ended", anthropic.AuthenticationError, "authentication_error"),
        ("not_found", anthropic.NotFoundError, "not_found_error"),
        ("too_large", anthropic.APIStatusError, "request_too_large"),
        ("too_many", anthropic.RateLimitError, "rate_limit_error"),
        ("busy", anthropic.APIStatusError, "overloaded_error"),
        ("upstream", anthropic.InternalServerError, "api_error"),
        ("timeout", anthropic.APIStatusError, "timeout_error"),
    ],
)
async def test_the_client_raises_the_matching_error(kind: Any, error: Any, name: str, stream: bool):
    async with client_of(Refusal(kind, "what, where, what to do")) as (client, _):
        with pytest.raises(error) as caught:
            await client.messages.create(**ASKED, stream=stream)
    assert caught.value.body["error"]["type"] == name
    assert "what, where, what to do" in caught.value.message


async def test_the_client_raises_an_error_in_the_middle_of_a_stream():
    broken = Refusal("busy", "the upstream is overloaded")
    async with client_of(an_answer("hello"), breaks=broken) as (client, _):
        with pytest.raises(anthropic.APIStatusError, match="overloaded"):
            async with client.messages.stream(**ASKED) as stream:
                await stream.get_final_message()
