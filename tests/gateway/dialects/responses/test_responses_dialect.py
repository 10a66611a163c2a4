"""The Responses dialect by itself: the translation of requests and of the policy's calls."""

import json
from typing import Any

import pytest
from wire_pieces import an_answer, chunks_of, refusing

from plimsoll.gateway.completions import (
    Answer,
    CallDelta,
    Chunk,
    Refusal,
    Request,
)
from plimsoll.gateway.dialects.responses.dialect import ResponsesDialect
from plimsoll.trajectories.messages import ToolCall

RESPONSES = ResponsesDialect()

SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin"},
}


def read(**fields: Any) -> Request:
    return RESPONSES.read(json.dumps({"model": "m", "input": "hello", **fields}).encode())


def sent(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    """The messages sent to an upstream."""
    return json.loads(bytes(read(input=list(items), **fields).messages))


def message_item(role: str, text: str, **more: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {
        "type": "message",
        "role": role,
        "content": [{"type": kind, "text": text}],
        **more,
    }


def calls(call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def output_of(answer: Answer, **fields: Any) -> list[dict[str, Any]]:
    return json.loads(RESPONSES.write(read(**fields), answer))["output"]


def events_of(data: bytes) -> list[dict[str, Any]]:
    blocks = data.decode().split("\n\n")
    return [json.loads(block.partition("data: ")[2]) for block in blocks if block]


def test_a_text_is_the_users_message_after_the_instructions():
    assert json.loads(bytes(read(instructions="be brief").messages)) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]


def test_all_initial_instructions_are_one_system_message():
    first = sent(
        message_item("developer", "b"),
        message_item("system", "c"),
        message_item("user", "d"),
        instructions="a",
    )
    assert first == [{"role": "system", "content": "a\n\nb\n\nc"}, {"role": "user", "content": "d"}]


def test_a_later_developer_message_becomes_a_user_message():
    assert [
        each["role"] for each in sent(message_item("user", "a"), message_item("developer", "b"))
    ] == [
        "user",
        "user",
    ]


def test_the_items_of_one_answer_are_one_message():
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    output = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    [_, answer, result] = sent(
        message_item("user", "go"),
        reasoning,
        message_item("assistant", "I look."),
        calls("c1"),
        output,
    )
    assert answer["content"] == "I look."
    assert answer["reasoning_content"] == "hm"
    assert [call["id"] for call in answer["tool_calls"]] == ["c1"]
    assert result == {"role": "tool", "content": "done", "tool_call_id": "c1"}


@pytest.mark.parametrize("calls_first", [False, True])
def test_items_of_one_answer_are_merged_by_their_ids(calls_first: bool):
    answer = an_answer("I look.", ToolCall("c1", "f", "{}"), reasoning="hm")
    items = output_of(answer)
    if calls_first:
        items = [items[0], items[2], items[1]]
    [message] = sent(*items)
    assert message["content"] == "I look."
    assert message["reasoning_content"] == "hm"
    assert [call["id"] for call in message["tool_calls"]] == ["c1"]


def test_two_answers_in_a_row_stay_two_messages():
    both = output_of(an_answer("one")) + output_of(an_answer("two"))
    assert [message["content"] for message in sent(*both)] == ["one", "two"]
    for item in both:
        del item["id"]
    assert [message["content"] for message in sent(*both)] == ["one", "two"]


def test_a_growing_history_is_sent_as_the_same_bytes():
    asked = message_item("user", "go")
    answer = an_answer("I look.", ToolCall("c1", "apply_patch", '{"input": "x"}'), reasoning="hm")
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    items = [asked, *output_of(answer, tools=[PATCH]), output]
    short, long = read(input=items[:1]), read(input=items)
    longer = read(input=[*items, *output_of(an_answer("done")), message_item("user", "more")])
    assert bytes(long.messages).startswith(bytes(short.messages)[:-1])
    assert bytes(longer.messages).startswith(bytes(long.messages)[:-1])
    assert [longer.history.key(i) for i in range(3)] == [long.history.key(i) for i in range(3)]
    assert json.loads(long.history.message(1).calls[0].arguments) == {"input": "x"}


URL = "data:image/png;base64,AAAA"
SEEN = [{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": URL}]


def test_images_in_outputs_follow_the_last_of_them_in_a_message_of_the_user():
    outputs = [
        {"type": "function_call_output", "call_id": "c1", "output": SEEN},
        {"type": "function_call_output", "call_id": "c2", "output": "done"},
    ]
    items = [message_item("user", "go"), calls("c1"), calls("c2"), *outputs]
    messages = sent(*items)
    assert messages[2:] == [
        {
            "role": "tool",
            "content": "seen\n[image: in the message that follows]",
            "tool_call_id": "c1",
        },
        {"role": "tool", "content": "done", "tool_call_id": "c2"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]},
    ]
    for more in (message_item("assistant", "I see."), calls("c3"), message_item("user", "And?")):
        assert sent(*items, more)[:-1] == messages


def test_opaque_parts_are_forwarded_unchanged():
    audio = {"type": "input_audio", "input_audio": {"data": "abc", "format": "wav"}}
    parts = [{"type": "input_text", "text": "hear"}, audio]
    messages = sent({"type": "message", "role": "user", "content": parts})
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "hear"}, audio]}]
    output = {"type": "function_call_output", "call_id": "c", "output": parts}
    assert sent(calls("c"), output)[-1] == {"role": "user", "content": [audio]}


@pytest.mark.parametrize("other", ["text", None, [1, 2, 3]])
def test_another_field_of_an_item_is_not_read_as_its_parts(other: Any):
    audio = {"type": "input_audio", "input_audio": {"data": "abc", "format": "wav"}}
    output = {"type": "function_call_output", "call_id": "c", "output": [audio], "content": other}
    assert sent(calls("c"), output)[-1] == {"role": "user", "content": [audio]}


def test_the_type_of_an_item_is_found_in_any_position():
    items = [message_item("user", "a"), calls("c"), {"call_id": "c", "output": "b"}]
    items[2]["type"] = "function_call_output"
    last = [dict(reversed(item.items())) for item in items]
    spaced = [{"role": "user", "type": "message", "content": "a"}, *last[1:]]
    assert sent(*last) == sent(*items) == sent(*spaced)


def test_a_freeform_tool_is_a_function_with_one_text():
    request = read(tools=[PATCH], tool_choice={"type": "custom", "name": "apply_patch"})
    assert request.tools is not None
    [tool] = json.loads(bytes(request.tools))
    assert tool["function"]["name"] == "apply_patch"
    assert "start: begin" in tool["function"]["description"]
    assert tool["function"]["parameters"]["required"] == ["input"]
    chosen = json.loads(bytes(request.settings["tool_choice"]))
    assert chosen == {"type": "function", "function": {"name": "apply_patch"}}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":"a\\nb"}', "a\nb"),
        ("not json", "not json"),
        ('["a"]', '["a"]'),
        ('{"input": "a", "more": 1}', '{"input": "a", "more": 1}'),
    ],
)
def test_a_freeform_tool_is_called_with_its_text(arguments: str, text: str):
    call = ToolCall("c1", "apply_patch", arguments)
    [item] = output_of(an_answer("", call), tools=[PATCH])
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", text)
    # The call comes back exactly as the policy wrote it.
    assert read(input=[item]).history.message(0).calls == (call,)


def test_a_tool_of_a_namespace_is_called_by_its_own_name():
    space = {"type": "namespace", "name": "agents", "description": "", "tools": [SHELL, PATCH]}
    request = read(tools=[space])
    assert request.tools is not None
    names = [tool["function"]["name"] for tool in json.loads(bytes(request.tools))]
    assert names == ["agents__shell", "agents__apply_patch"]
    [item] = output_of(an_answer("", ToolCall("c1", "agents__shell", "{}")), tools=[space])
    assert (item["namespace"], item["name"]) == ("agents", "shell")
    [message] = sent(item)
    assert message["tool_calls"][0]["function"]["name"] == "agents__shell"


def test_tools_that_come_with_the_history_are_offered():
    more = {"type": "additional_tools", "role": "developer", "tools": [SHELL]}
    request = read(input=[more, message_item("user", "go")])
    assert request.tools is not None
    assert json.loads(bytes(request.tools))[0]["function"]["name"] == "shell"


def test_the_local_shell_is_called_with_its_command():
    tools = [{"type": "local_shell"}]
    call = ToolCall("c1", "local_shell", '{"command": ["ls"], "timeout_ms": 5}')
    [item] = output_of(an_answer("", call), tools=tools)
    assert item["type"] == "local_shell_call"
    assert item["action"] == {"type": "exec", "env": {}, "command": ["ls"], "timeout_ms": 5}
    [message] = sent(item)
    back = message["tool_calls"][0]["function"]
    assert back["name"] == "local_shell"
    assert json.loads(back["arguments"]) == {"command": ["ls"], "timeout_ms": 5}
    [item] = output_of(an_answer("", ToolCall("c1", "local_shell", "oops")), tools=tools)
    assert (item["type"], item["arguments"]) == ("function_call", "oops")


def test_hosted_tools_that_agents_offer_by_default_are_dropped():
    request = read(tools=[SHELL, {"type": "web_search", "external_web_access": True}])
    assert request.tools is not None
    assert len(json.loads(bytes(request.tools))) == 1
    assert read(tools=[{"type": "web_search"}], tool_choice="auto").settings == {}


def test_settings_are_those_of_chat():
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    request = read(
        max_output_tokens=9,
        temperature=0.5,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": schema, "verbosity": "low"},
        tools=[SHELL],
        tool_choice="required",
        parallel_tool_calls=False,
        top_k=7,
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        metadata={"a": "b"},
        previous_response_id=None,
        background=False,
    )
    assert {name: json.loads(bytes(raw)) for name, raw in request.settings.items()} == {
        "max_tokens": 9,
        "temperature": 0.5,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "top_k": 7,
    }


def test_an_unknown_effort_is_not_sent():
    assert read(reasoning={"effort": "xhigh"}).settings == {}


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"previous_response_id": "resp_1"}, "unsupported", "previous_response_id"),
        ({"conversation": "conv_1"}, "unsupported", "conversation"),
        ({"prompt": {"id": "p"}}, "unsupported", "prompt"),
        ({"background": True}, "unsupported", "background"),
        ({"n": 2}, "bad_request", "n"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported", "input[0].type"),
        ({"input": [message_item("user", "a"), {"type": "odd"}]}, "unsupported", "input[1].type"),
        ({"input": [message_item("odd", "a")]}, "bad_request", "input[0].role"),
        ({"input": 5}, "bad_request", "input"),
        ({"input": None}, "bad_request", "input"),
        ({"model": 5}, "bad_request", "model"),
        ({"stream": "yes"}, "bad_request", "stream"),
        ({"tools": [SHELL, {"type": "code_interpreter"}]}, "unsupported", "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "bad_request", "tools[0].name"),
        ({"tools": [SHELL | {"parameters": 5}]}, "bad_request", "tools[0].parameters"),
        ({"tool_choice": {"type": "web_search"}}, "unsupported", "tool_choice"),
        ({"tool_choice": "perhaps"}, "bad_request", "tool_choice"),
        ({"text": {"format": {"type": "odd"}}}, "unsupported", "text.format.type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "unsupported",
            "input[0].content[0]",
        ),
    ],
)
def test_unsupported_fields_are_refused_by_name(fields: dict[str, Any], kind: str, param: str):
    refusal = refusing(RESPONSES, {"model": "m", "input": "hello", **fields})
    assert (refusal.kind, refusal.param) == (kind, param)
    assert json.loads(RESPONSES.refuse(refusal))["error"]["param"] == param


@pytest.mark.parametrize("kind", ["shell", "apply_patch", "computer", "computer_use_preview"])
def test_a_tool_that_the_agent_runs_needs_a_schema(kind: str):
    refusal = refusing(RESPONSES, {"model": "m", "input": "hello", "tools": [{"type": kind}]})
    assert "offer the tool as a function, with its parameters" in refusal.message
    hosted = {"model": "m", "input": "hello", "tools": [{"type": "file_search"}]}
    assert "are not available here; remove it" in refusing(RESPONSES, hosted).message


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("refused", "content_filter")]
)
def test_an_answer_that_was_cut_is_incomplete(finish: Any, reason: str):
    answer = an_answer("half", finish=finish)
    response = json.loads(RESPONSES.write(read(), answer))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": reason}
    assert events_of(RESPONSES.stream(read()).whole(answer))[-1]["type"] == "response.incomplete"


def test_reasoning_is_encrypted_only_if_requested():
    answer = an_answer("a", reasoning="hm")
    assert "encrypted_content" not in output_of(answer)[0]
    sealed = output_of(answer, include=["reasoning.encrypted_content"])[0]
    assert sealed["encrypted_content"]
    assert sealed["summary"] == [{"type": "summary_text", "text": "hm"}]


def test_no_call_is_finished_before_the_answer_is_recorded():
    answer = an_answer("I look.", ToolCall("c1", "shell", "{}"), ToolCall("c2", "shell", "{}"))
    stream = RESPONSES.stream(read(tools=[SHELL]))
    before = events_of(stream.start() + stream.chunks(chunks_of(answer)))
    assert not [event for event in before if event["type"] == "response.output_item.done"]
    after = [event["type"] for event in events_of(stream.end(answer))]
    assert after.count("response.output_item.done") == 3
    assert after[-1] == "response.completed"


def test_events_are_numbered_and_keep_their_ids():
    answer = an_answer("I look.", ToolCall("c1", "shell", '{"a": 1}'), reasoning="hm")
    stream = RESPONSES.stream(read(tools=[SHELL]))
    # A piece before the start is preceded by the start.
    data = stream.chunks(chunks_of(answer)) + stream.start() + stream.ping() + stream.end(answer)
    events = events_of(data)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    by_index = {
        event["output_index"]: event["item"]["id"]
        for event in events
        if event["type"] == "response.output_item.added"
    }
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == by_index[event["output_index"]]
    assert [item["id"] for item in events[-1]["response"]["output"]] == list(by_index.values())


@pytest.mark.parametrize("replays", [False, True])
def test_the_pieces_of_an_item_add_up_to_it(replays: bool):
    calls = (ToolCall("c1", "shell", '{"a": 1}'), ToolCall("c2", "apply_patch", '{"input": "b"}'))
    answer = an_answer("I look.", *calls, reasoning="hm")
    request = read(tools=[SHELL, PATCH])
    stream = RESPONSES.stream(request)
    data = RESPONSES.stream(request).whole(answer) if replays else stream.chunks(chunks_of(answer))
    events = events_of(data if replays else data + stream.end(answer))
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "response.output_item.added":
            item = event["item"]
            assert not (item.get("content") or item.get("summary"))
            texts[event["output_index"]] = item.get("arguments", "") + item.get("input", "")
        elif "delta" in event:
            texts[event["output_index"]] += event["delta"]
    assert texts == {0: "hm", 1: "I look.", 2: '{"a": 1}', 3: "b"}
    whole = [item["type"] for item in events[-1]["response"]["output"]]
    assert whole == ["reasoning", "message", "function_call", "custom_tool_call"]


def test_pieces_that_arrive_together_are_one_event():
    stream = RESPONSES.stream(read())
    stream.start()
    events = events_of(stream.chunks([Chunk(b"", text=letter) for letter in "hello"]))
    assert [event["delta"] for event in events if "delta" in event] == ["hello"]


def test_text_after_a_call_belongs_to_the_same_message():
    answer = an_answer("a\n", ToolCall("c1", "shell", "{}"))
    stream = RESPONSES.stream(read(tools=[SHELL]))
    pieces = [
        Chunk(b"", text="a"),
        Chunk(b"", calls=[CallDelta(0, "c1", "shell", "{}")]),
        Chunk(b"", text="\n"),
    ]
    last = events_of(stream.chunks(pieces) + stream.end(answer))[-1]
    [message, call] = last["response"]["output"]
    assert message["content"][0]["text"] == "a\n"
    assert call["call_id"] == "c1"


def test_a_call_without_an_id_gets_one():
    [item] = output_of(an_answer("", ToolCall("", "shell", "{}")), tools=[SHELL])
    assert item["call_id"]


def test_a_failed_stream_reports_the_code_that_agents_recognize():
    for kind, code in (
        ("context_length", "context_length_exceeded"),
        ("budget", "context_length_exceeded"),
        ("too_many", "rate_limit_exceeded"),
        ("bad_request", "invalid_prompt"),
    ):
        stream = RESPONSES.stream(read())
        events = events_of(stream.fail(Refusal(kind, "why")))  # type: ignore[arg-type]
        assert events[0]["type"] == "response.created"
        failed = events[-1]
        assert failed["type"] == "response.failed"
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"] == {"code": code, "message": "why"}
