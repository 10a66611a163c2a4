"""The chat dialect by itself: parsed requests, written answers, forwarded bytes."""

import json
from typing import Any

import msgspec
import pytest
from wire_pieces import an_answer, chunks_of, raw_answer, refusing

from plimsoll.gateway.completions import Chunk, Refusal, Request
from plimsoll.gateway.dialects.chat.dialect import ChatDialect
from plimsoll.trajectories.messages import Image, Message, Other, Text, ToolCall

CHAT = ChatDialect()
HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def read(**fields: Any) -> Request:
    return CHAT.read(json.dumps(HELLO | fields).encode())


def written(request: Request, answer: Any) -> dict[str, Any]:
    return json.loads(CHAT.write(request, answer))


def data_of(stream: bytes) -> list[Any]:
    events = [event for event in stream.decode().split("\n\n") if event]
    assert all(event.startswith("data: ") for event in events)
    return [event[6:] if event == "data: [DONE]" else json.loads(event[6:]) for event in events]


def test_messages_are_forwarded_as_the_bytes_the_agent_sent():
    array = b'[ {"role": "user",  "content":"h\\u00e9", "odd": 1} ]'
    request = CHAT.read(b'{"messages":' + array + b',"model":"m"}')
    assert bytes(request.messages) == array


def test_unknown_fields_are_forwarded_unchanged():
    request = read(temperature=0.5, top_k=3, chat_template_kwargs={"enable_thinking": False})
    settings = {name: json.loads(bytes(raw)) for name, raw in request.settings.items()}
    assert settings == {
        "temperature": 0.5,
        "top_k": 3,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_fields_set_by_the_gateway_are_not_among_the_settings():
    request = read(stream=True, stream_options={"include_usage": True}, logprobs=False, tools=[])
    assert request.settings == {}
    assert (request.stream, request.wants_usage, request.tools) == (True, True, None)
    assert not request.wants_logprobs


def test_requested_logprobs_are_requested_from_the_upstream():
    request = read(logprobs=True, top_logprobs=2)
    assert request.wants_logprobs
    assert set(request.settings) == {"logprobs", "top_logprobs"}


def test_unknown_roles_are_sent_by_names_that_chat_templates_know():
    messages = [
        {"content": "rules", "role": "developer"},
        {"role": "user", "content": "hello"},
        {"role": "function", "name": "f", "content": "4"},
    ]
    request = read(messages=messages)
    sent = json.loads(bytes(request.messages))
    assert [message["role"] for message in sent] == ["system", "user", "tool"]
    assert sent[0]["content"] == "rules"
    roles = [request.history.message(index).role for index in range(3)]
    assert roles == ["system", "user", "tool"]


@pytest.mark.parametrize("first", ["role", "content"])
def test_a_call_with_invalid_arguments_is_sent_as_valid_json(first: str):
    broken, fine = '{"command": "ls', '{ "command": "ls" }'
    calls = [
        {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}, "odd": 1}
        for id, arguments in (("c1", fine), ("c2", broken), ("c3", ""))
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    message = {first: message[first], **message}
    request = read(messages=[*HELLO["messages"], message])
    [_, sent] = json.loads(bytes(request.messages))
    given = [call["function"]["arguments"] for call in sent["tool_calls"]]
    assert given == [fine, json.dumps({"_invalid_arguments": broken}, separators=(",", ":")), "{}"]
    assert [call["odd"] for call in sent["tool_calls"]] == [1, 1, 1]
    assert [call.arguments for call in request.history.message(1).calls] == [fine, broken, ""]


def test_a_message_is_parsed_completely():
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,xyz"}},
                {"type": "input_audio", "input_audio": {"data": "abc", "format": "wav"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    history = read(messages=messages).history
    assert [history.message(index) for index in range(len(history))] == [
        Message(
            "user",
            (
                Text("look"),
                Image("data:image/png;base64,xyz"),
                Other(msgspec.Raw(json.dumps(messages[0]["content"][2]).encode())),
            ),
        ),
        Message("assistant", reasoning="hm", calls=(ToolCall("c1", "f", '{"a":1}'),)),
        Message("tool", (Text("done"),), call_id="c1"),
    ]


def test_equal_bytes_have_equal_keys_and_others_do_not():
    once, again = read().history, read(temperature=1).history
    other = read(messages=[{"role": "user", "content": "hello!"}]).history
    assert once.key(0) == again.key(0) != other.key(0)
    assert len(once.key(0)) == 16


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "robot"}]}, "messages[1].role"),
        ({"messages": [{"content": "a"}]}, "messages[0]"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"model": 4}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"n": 2}, "n"),
        ({"tools": {}}, "tools"),
        ({"stream_options": []}, "stream_options"),
    ],
)
def test_errors_name_the_invalid_field(fields: dict[str, Any], param: str):
    refusal = refusing(CHAT, HELLO | fields)
    assert refusal.param == param
    assert param in refusal.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"[]",
        b"nul",
        b'"text"',
        b'{"model":"\xff"}',
        b'{"model":' + b"[" * 100_000,
    ],
)
def test_a_body_that_is_not_an_object_is_refused(body: bytes):
    assert refusing(CHAT, body).kind == "bad_request"


def test_an_invalid_message_is_named_when_it_is_parsed():
    content = [{"type": "text", "text": "a"}, "b"]
    history = read(messages=[{"role": "user", "content": content}]).history
    with pytest.raises(Refusal) as caught:
        history.message(0)
    assert caught.value.param == "messages[0].content[1]"


def test_several_answers_are_refused_as_unsupported():
    refusal = refusing(CHAT, HELLO | {"n": 3})
    assert refusal.kind == "unsupported"


def test_an_answer_omits_fields_the_agent_did_not_request():
    body = written(read(), raw_answer(an_answer("hi")))
    assert body["model"] == "m"
    assert body["usage"]["completion_tokens"] == 7
    assert "prompt_token_ids" not in body
    assert set(body["choices"][0]) == {"index", "message", "finish_reason"}


def test_an_answer_has_the_requested_log_probabilities():
    body = written(read(logprobs=True), raw_answer(an_answer("hi")))
    assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5
    assert "token_ids" not in body["choices"][0]


def test_pieces_of_a_stream_are_forwarded_as_bytes():
    stream = CHAT.stream(read(stream=True))
    chunks = chunks_of(an_answer("hello world"))
    middle = chunks[1:-2]
    assert stream.chunks(middle) == b"".join(b"data: " + c.data + b"\n\n" for c in middle)


def test_the_end_of_a_stream_waits_until_the_answer_is_recorded():
    answer = an_answer("hello")
    stream = CHAT.stream(read(stream=True))
    before = data_of(stream.chunks(chunks_of(answer)))
    assert all(event["choices"][0]["finish_reason"] is None for event in before)
    after = data_of(stream.end(answer))
    assert after[0]["choices"][0]["finish_reason"] == "stop"
    assert after[-1] == "[DONE]"


@pytest.mark.parametrize("whole", [False, True])
def test_a_stream_ends_with_usage_only_if_requested(whole: bool):
    answer = an_answer("hello")
    for asked in (False, True):
        request = read(stream=True, stream_options={"include_usage": asked})
        stream = CHAT.stream(request)
        if whole:
            events = data_of(CHAT.stream(request).whole(answer))
        else:
            events = data_of(stream.chunks(chunks_of(answer)) + stream.end(answer))
        counted = [event for event in events[:-1] if event.get("usage")]
        assert len(counted) == asked
        assert not asked or counted[0]["usage"]["total_tokens"] == 127


def test_a_first_piece_without_choices_delays_nothing():
    stream = CHAT.stream(read(stream=True))
    empty = Chunk(b'{"choices":[]}', only_usage=True)
    spoken = Chunk(b'{"choices":[{"delta":{"content":"a"}}]}', text="a")
    assert stream.chunks([empty, spoken]) == b"data: " + spoken.data + b"\n\n"


def test_the_ids_of_the_prompt_are_not_streamed_to_the_agent():
    stream = CHAT.stream(read(stream=True))
    [first, *_] = data_of(stream.chunks(chunks_of(an_answer("hello"))))
    assert "prompt_token_ids" not in first
    assert first["choices"][0]["delta"]["role"] == "assistant"


def test_a_piece_of_several_lines_stays_one_event():
    stream = CHAT.stream(read(stream=True))
    sent = stream.chunks([Chunk(b'{"choices":\r\n[]}', text="a")])
    assert sent == b'data: {"choices":\ndata: []}\n\n'


@pytest.mark.parametrize(
    ("kind", "code"),
    [("context_length", "context_length_exceeded"), ("budget", "context_length_exceeded")],
)
def test_a_conversation_that_is_too_long_has_the_code_that_agents_recognize(kind: Any, code: str):
    error = json.loads(CHAT.refuse(Refusal(kind, "too long", param="messages")))["error"]
    assert error == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": code,
    }
