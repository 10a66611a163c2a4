"""The dialect of Anthropic's Messages by itself: the translation of requests and answers."""

import json
from typing import Any

import pytest
from wire_pieces import an_answer, chunks_of, raw_answer, refusing

from plimsoll.gateway.completions import (
    CallDelta,
    Chunk,
    Refusal,
    Request,
)
from plimsoll.gateway.dialects.messages.dialect import MessagesDialect, write_count
from plimsoll.trajectories.messages import ToolCall

MESSAGES = MessagesDialect()
HELLO: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hello"}],
}
OF_CHAT = ("n", "logprobs", "top_logprobs", "functions", "function_call", "response_format", "stop")
TOOL = {"name": "bash", "description": "Run.", "input_schema": {"type": "object"}}


def read(**fields: Any) -> Request:
    return MESSAGES.read(json.dumps(HELLO | fields).encode())


def sent(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    request = read(messages=list(messages), **fields)
    return json.loads(bytes(request.messages))


def settings(**fields: Any) -> dict[str, Any]:
    return {name: json.loads(bytes(raw)) for name, raw in read(**fields).settings.items()}


def user(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": "user", "content": [_block(block) for block in blocks]}


def assistant(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": "assistant", "content": [_block(block) for block in blocks]}


def _block(block: dict[str, Any] | str) -> dict[str, Any]:
    return {"type": "text", "text": block} if isinstance(block, str) else block


def use(id: str, **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "bash", "input": input}


def result(id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
PIXEL_SENT = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}


def test_a_system_prompt_is_one_text_however_it_is_cut():
    marked = {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}
    asked = {"role": "user", "content": "hello"}
    assert sent(asked, system="one\ntwo") == sent(asked, system=[_block("one"), marked])
    assert sent(asked, system="one")[0] == {"role": "system", "content": "one"}
    assert [message["role"] for message in sent(asked, system=[])] == ["user"]


def test_a_note_to_the_vendor_is_not_part_of_the_prompt():
    note = _block("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;")
    assert sent(user("hello"), system=[note, _block("be brief")])[0]["content"] == "be brief"


def test_images_are_forwarded_as_urls():
    remote = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    [message] = sent(user("look", PIXEL, remote))
    assert message["content"] == [
        {"type": "text", "text": "look"},
        PIXEL_SENT,
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]


def test_calls_and_their_results_become_messages_of_their_own():
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "opaque"}
    messages = sent(
        user("list"),
        assistant(thought, hidden, "I look.", use("c1", command="ls")),
        user(result("c1", "a.py"), "and now?"),
    )
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    assert messages[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "reasoning": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "a.py", "tool_call_id": "c1"},
        {"role": "user", "content": "and now?"},
    ]


def test_results_come_right_after_the_calls_and_everything_else_after_them():
    calls = assistant(use("c1"), use("c2"))
    messages = sent(user("go"), calls, user("wait", result("c2", "b")), user(result("c1", "a")))
    assert [(message["role"], message["content"]) for message in messages[2:]] == [
        ("tool", "b"),
        ("tool", "a"),
        ("user", "wait"),
    ]


def test_an_image_in_a_result_follows_in_a_message_of_the_user():
    messages = sent(user("go"), assistant(use("c1")), user(result("c1", [_block("seen"), PIXEL])))
    assert messages[2]["content"] == "seen\n[image: in the message that follows]"
    assert messages[3] == {"role": "user", "content": [PIXEL_SENT]}


@pytest.mark.parametrize("content", [None, "", []])
def test_a_result_may_be_empty(content: Any):
    messages = sent(user("go"), assistant(use("c1")), user(result("c1", content)))
    assert messages[2] == {"role": "tool", "content": "", "tool_call_id": "c1"}


def test_a_failed_result_is_marked():
    failed = user(result("c1", "exit code 2", is_error=True))
    messages = sent(user("go"), assistant(use("c1")), failed)
    assert messages[2]["content"] == "Error: exit code 2"


def test_a_result_without_its_call_becomes_text():
    messages = sent(user(result("gone", "a.py"), "go on"))
    assert messages == [{"role": "user", "content": "[result of the call gone]\na.py\ngo on"}]


def test_adjacent_messages_of_one_role_are_merged():
    together = sent(user("a"), user("b"), assistant("c"), assistant(use("c1")))
    assert [message["role"] for message in together] == ["user", "assistant"]
    assert together[0]["content"] == "a\nb"
    assert (together[1]["content"], len(together[1]["tool_calls"])) == ("c", 1)


def test_the_texts_of_an_answer_are_the_one_text_that_the_policy_wrote():
    assert sent(user("a"), assistant("b ", use("c1"), "c"))[1]["content"] == "b c"


def test_a_system_prompt_in_the_middle_becomes_a_user_message():
    middle = {"role": "system", "content": "agents: none"}
    [message] = sent(user("hello"), middle)
    note = "<system-reminder>\nagents: none\n</system-reminder>"
    assert message == {"role": "user", "content": f"hello\n{note}"}


def test_a_prefilled_answer_is_continued():
    request = read(messages=[user("hello"), assistant("{")])
    assert request.continues


def test_documents_become_text():
    text = {"type": "document", "title": "t", "source": {"type": "text", "data": "body"}}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "eA=="}
    [message] = sent(user(text, {"type": "document", "source": pdf}))
    note = "[a document of type application/pdf, which the policy cannot read]"
    assert message["content"] == f"t\nbody\n{note}"


def test_a_growing_conversation_keeps_its_bytes():
    turns = [
        user("<system-reminder>x</system-reminder>", "list"),
        {"role": "system", "content": "agents"},
        assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, use("c1", a="é")),
        user(result("c1", [_block("seen"), PIXEL]), result("gone", "x", is_error=True)),
        assistant("", use("c2", _invalid_arguments='{"a'), use("c3")),
        user(result("c2", "bad", is_error=True), result("c3", "ok")),
        assistant("done"),
        user(""),
    ]
    ends = [index + 1 for index, turn in enumerate(turns) if turn["role"] == "user"]
    before = b""
    keys: list[bytes] = []
    for end in ends:
        # Cache marks move with every turn.
        last = {**turns[end - 1]["content"][-1], "cache_control": {"type": "ephemeral"}}
        marked = {"role": "user", "content": [*turns[end - 1]["content"][:-1], last]}
        request = read(messages=[*turns[: end - 1], marked])
        if end == 1:
            continue  # the system note still joins this message
        body = bytes(request.messages)
        assert body.startswith(before[:-1])
        assert [request.history.key(index) for index in range(len(keys))] == keys
        before = body
        keys = [request.history.key(index) for index in range(len(request.history))]


def test_tools_become_functions():
    request = read(tools=[TOOL, {"type": "custom", "name": "f", "input_schema": {}}])
    assert request.tools is not None
    first = {"name": "bash", "description": "Run.", "parameters": {"type": "object"}}
    second = {"name": "f", "parameters": {}}
    assert json.loads(bytes(request.tools)) == [
        {"type": "function", "function": first},
        {"type": "function", "function": second},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "bash", "disable_parallel_tool_use": True},
            {
                "tool_choice": {"type": "function", "function": {"name": "bash"}},
                "parallel_tool_calls": False,
            },
        ),
    ],
)
def test_a_choice_of_tool_is_translated(choice: Any, expected: dict[str, Any]):
    assert settings(tools=[TOOL], tool_choice=choice) == {"max_tokens": 100, **expected}
    assert settings(tool_choice=choice) == {"max_tokens": 100}, "servers refuse it without tools"


def test_settings_are_translated_and_those_of_the_vendor_dropped():
    schema = {"type": "object"}
    form = {"format": {"type": "json_schema", "schema": schema}, "effort": "high"}
    assert settings(
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": []},
        thinking={"type": "adaptive"},
        output_config=form,
    ) == {
        "max_tokens": 100,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema},
        },
    }


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"messages": []}, "bad_request", "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "bad_request", "messages[0].role"),
        ({"messages": [user({"type": "odd"})]}, "bad_request", "messages[0].content[0].type"),
        ({"messages": [user(use("c1"))]}, "bad_request", "messages"),
        ({"messages": [assistant(PIXEL)]}, "bad_request", "messages"),
        ({"max_tokens": "many"}, "bad_request", "max_tokens"),
        ({"system": 4}, "bad_request", "system"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "unsupported",
            "tools[0].input_schema",
        ),
        ({"mcp_servers": [{"url": "x"}]}, "unsupported", "mcp_servers"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "bad_request", "tool_choice.name"),
        *(({name: 1}, "bad_request", name) for name in OF_CHAT),
    ],
)
def test_unsupported_fields_are_named(fields: dict[str, Any], kind: str, param: str):
    refusal = refusing(MESSAGES, HELLO | fields)
    assert (refusal.kind, refusal.param) == (kind, param)


@pytest.mark.parametrize(
    ("kind", "by_server"),
    [
        ("bash_20250124", False),
        ("text_editor_20250728", False),
        ("memory_20250818", False),
        ("computer_20250124", False),
        ("custom", False),
        (None, False),
        ("web_search_20250305", True),
        ("code_execution_20250825", True),
    ],
)
def test_a_tool_without_a_schema_is_distinguished_from_a_server_tool(
    kind: str | None, by_server: bool
):
    message = refusing(MESSAGES, HELLO | {"tools": [{"type": kind, "name": "it"}]}).message
    assert ("Tools that a server runs" in message, "give the tool's schema" in message) == (
        by_server,
        not by_server,
    )
    given = {"type": kind, "name": "it", "input_schema": {"type": "object"}}
    assert read(tools=[given]).tools


def test_fields_of_chat_completions_only_are_refused():
    """Above all `n`: the tokens of several answers would be recorded as one."""
    assert refusing(MESSAGES, HELLO | {"n": 3}).message == "n is not a field of Messages"
    assert settings(n=None, top_k=5, min_p=0.1) == {"max_tokens": 100, "top_k": 5, "min_p": 0.1}


def test_invalid_arguments_come_back_as_the_policy_wrote_them():
    broken = '{"command": "ls'
    body = json.loads(MESSAGES.write(read(), an_answer("", ToolCall("c1", "bash", broken))))
    [block] = body["content"]
    assert block["input"] == {"_invalid_arguments": broken}
    request = read(messages=[user("go"), assistant(block), user(result("c1", "no", is_error=True))])
    assert request.history.message(1).calls == (ToolCall("c1", "bash", broken),)
    # A server parses the arguments of earlier calls.
    [call] = json.loads(bytes(request.messages))[1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"_invalid_arguments": broken}


def test_reasoning_is_sent_only_to_agents_that_asked_for_it():
    answer = an_answer("hi", reasoning="hm")
    for thinking, kinds in (
        ({"type": "enabled", "budget_tokens": 2000}, ["thinking", "text"]),
        ({"type": "adaptive"}, ["thinking", "text"]),
        ({"type": "disabled"}, ["text"]),
        (None, ["text"]),
    ):
        request = read(thinking=thinking, stream=True)
        body = json.loads(MESSAGES.write(request, answer))
        assert [block["type"] for block in body["content"]] == kinds
        assert (b"hm" in MESSAGES.stream(request).whole(answer)) == ("thinking" in kinds)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("refused", "refusal")],
)
def test_the_stop_reason_is_reported(finish: Any, reason: str):
    body = json.loads(MESSAGES.write(read(), an_answer("hi", finish=finish)))
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, None)


def test_the_matched_stop_sequence_is_reported():
    request = read(stop_sequences=["END"])
    answer = an_answer("hi")
    body = json.loads(MESSAGES.write(request, raw_answer(answer, stop_reason="END")))
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "END")
    stream = MESSAGES.stream(request)
    stream.chunks(chunks_of(answer, stop_reason="END"))
    assert b'"stop_sequence":"END"' in stream.end(answer)


def test_cached_tokens_are_counted_separately():
    usage = json.loads(MESSAGES.write(read(), an_answer("hi", cached=100)))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (20, 100)


def test_the_end_of_a_stream_waits_until_the_answer_is_recorded():
    answer = an_answer("hello", ToolCall("c1", "bash", "{}"))
    stream = MESSAGES.stream(read(stream=True))
    before = stream.start() + stream.chunks(chunks_of(answer))
    assert b"message_delta" not in before
    assert before.count(b"event: content_block_stop") == 1, "the call is still open"
    assert b"input_json_delta" not in before
    after = stream.end(answer)
    assert after.rstrip().endswith(b'data: {"type":"message_stop"}')


def test_a_connection_stays_open_while_a_long_call_is_written():
    stream = MESSAGES.stream(read(stream=True))
    stream.chunks([Chunk(b"", calls=[CallDelta(0, "c1", "f")])])
    piece = Chunk(b"", calls=[CallDelta(0, arguments="x")])
    written = b"".join(stream.chunks([piece]) for _ in range(640))
    assert written == stream.ping() * 10


def test_pieces_that_arrive_together_are_written_together():
    stream = MESSAGES.stream(read(stream=True))
    written = stream.chunks([Chunk(b"", text=piece) for piece in "abc"])
    assert written.count(b"content_block_delta\ndata") == 1
    assert b'"text":"abc"' in written


def test_a_stream_that_goes_back_to_an_earlier_call_is_refused():
    stream = MESSAGES.stream(read(stream=True))
    calls = [CallDelta(0, "c1", "f"), CallDelta(1, "c2", "f"), CallDelta(0, arguments="{}")]
    with pytest.raises(Refusal, match="earlier call"):
        stream.chunks([Chunk(b"", calls=calls)])


LIMIT, PROMPT, ASKED = 32768, 30000, 8000


@pytest.mark.parametrize(
    "server_message",
    [
        f"This model's maximum context length is {LIMIT} tokens. However, you requested 38000 "
        f"tokens ({PROMPT} in the messages, {ASKED} in the completion). Please reduce it.",
        f"'max_tokens' or 'max_completion_tokens' is too large: {ASKED}. This model's maximum "
        f"context length is {LIMIT} tokens and your request has {PROMPT} input tokens.",
        f"You passed {PROMPT} input tokens and requested {ASKED} output tokens. However, the "
        f"model's context length is only {LIMIT} tokens.",
        f"Requested token count exceeds the model's maximum context length of {LIMIT} tokens. "
        f"You requested a total of 38000 tokens: {PROMPT} tokens from the input messages and "
        f"{ASKED} tokens for the completion.",
    ],
)
def test_a_prompt_that_fits_with_a_shorter_answer_reports_the_figures(server_message: str):
    error = json.loads(MESSAGES.refuse(Refusal("context_length", server_message)))["error"]
    expected = f"exceed context limit: {PROMPT} + {ASKED} > {LIMIT},"
    assert expected in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("server_message", "expected"),
    [
        (
            "This model's maximum context length is 4096 tokens. However, your request has 5000 "
            "input tokens. Please reduce the length of the input messages.",
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        (
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5100 "
            "tokens (5000 in the messages, 100 in the completion).",
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        ("the context is full", "prompt is too long: the context is full"),
    ],
)
def test_a_prompt_that_is_too_long_is_reported_in_words_that_agents_recognize(
    server_message: str, expected: str
):
    error = json.loads(MESSAGES.refuse(Refusal("context_length", server_message)))["error"]
    assert error["message"] == expected


def test_tokens_are_counted_without_a_limit_on_the_answer():
    body = {name: value for name, value in HELLO.items() if name != "max_tokens"}
    assert len(MESSAGES.read(json.dumps(body).encode()).history) == 1
    assert json.loads(write_count(17)) == {"input_tokens": 17}
