"""Any input yields a request or a refusal, and no content of a message is lost."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.chat.dialect import ChatDialect
from plimsoll.gateway.dialects.encoding import chat_to_message, history, message_to_chat
from plimsoll.gateway.dialects.messages.dialect import MessagesDialect
from plimsoll.trajectories.messages import Image, Message, Other, Text, ToolCall

DIALECTS = [ChatDialect(), MessagesDialect()]

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
types = st.sampled_from(
    [
        "text",
        "image",
        "document",
        "search_result",
        "tool_reference",
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
        "image_url",
        "refusal",
        "input_audio",
        "odd",
    ]
)
sources = st.fixed_dictionaries(
    {"type": st.sampled_from(["base64", "url", "file", "text", "content"])},
    optional=dict.fromkeys(("media_type", "data", "url", "file_id", "content"), scalars),
)
blocks = st.deferred(
    lambda: st.fixed_dictionaries(
        {"type": types},
        optional={
            "text": st.text(),
            "thinking": st.text(),
            "id": st.text(),
            "tool_use_id": st.text(),
            "name": st.text(),
            "title": scalars,
            "tool_name": scalars,
            "input": values,
            "source": sources | values,
            "image_url": values,
            "is_error": st.booleans() | st.none(),
            "content": values | st.lists(blocks, max_size=2),
        },
    )
)
turns = st.fixed_dictionaries(
    {
        "role": st.sampled_from(
            ["system", "developer", "user", "assistant", "tool", "function", "odd"]
        )
    },
    optional={
        "content": st.text() | st.lists(blocks, max_size=3) | values,
        "tool_calls": st.lists(values, max_size=2),
        "function_call": values,
        "reasoning_content": st.text() | values,
    },
)
bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(turns, min_size=1, max_size=4)},
    optional=dict.fromkeys(
        [
            "system",
            "tools",
            "tool_choice",
            "stream",
            "stream_options",
            "logprobs",
            "n",
            "stop_sequences",
            "thinking",
            "output_config",
            "output_format",
            "max_tokens",
            "metadata",
            "mcp_servers",
        ],
        values,
    ),
)


def read_or_refuse(dialect: Any, body: bytes) -> None:
    try:
        request = dialect.read(body)
        for index in range(len(request.history)):
            assert len(request.history.key(index)) == 16
            assert isinstance(request.history.message(index), Message)
        assert isinstance(json.loads(bytes(request.messages)), list)
    except Refusal as refusal:
        json.loads(dialect.refuse(refusal))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(deadline=None, max_examples=150)
@given(body=bodies)
def test_any_body_gets_a_request_or_a_refusal(dialect: Any, body: Any):
    read_or_refuse(dialect, json.dumps(body).encode())


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("content", [r"\u00zz", "\x01", "é\\"])
def test_invalid_unicode_is_refused(dialect: Any, content: str):
    body = '{"model":"m","messages":[{"role":"user","content":"' + content + '"}]}'
    with pytest.raises(Refusal):
        dialect.read(body.encode()).history.message(0)


others = st.builds(
    lambda value: Other(msgspec.Raw(msgspec.json.encode({"type": "input_audio", "odd": value}))),
    st.text(),
)
parts = st.builds(Text, st.text()) | st.builds(Image, st.text()) | others
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    parts=st.lists(parts, max_size=3).map(tuple),
    reasoning=st.text(),
    calls=st.lists(st.builds(ToolCall, st.text(), st.text(), st.text()), max_size=2).map(tuple),
    call_id=st.text(),
    name=st.text(),
)


@settings(deadline=None, max_examples=200)
@given(message=messages)
def test_a_message_survives_a_round_trip_through_chat(message: Message):
    assert chat_to_message(msgspec.json.encode(message_to_chat(message))) == message


@settings(deadline=None, max_examples=50)
@given(before=st.lists(messages, max_size=3), after=st.lists(messages, max_size=3))
def test_a_conversation_is_sent_as_the_same_bytes_whatever_follows(
    before: list[Message], after: list[Message]
):
    short, sent = history(before)
    long, more = history([*before, *after])
    assert bytes(more).startswith(bytes(sent)[:-1])
    assert [long.key(i) for i in range(len(short))] == [short.key(i) for i in range(len(short))]
