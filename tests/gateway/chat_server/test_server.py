import asyncio
import json
from typing import Any

import pytest
from gateway_parts import fields
from letters import Letters, served

from plimsoll.gateway.chat_server.inference_engine import SamplingParams
from plimsoll.gateway.upstreams.probe import probe
from plimsoll.testing.waiting import until

TOOLS = [{"type": "function", "function": {"name": "now"}}]
CALL = 'So.<tool_call>\n{"name":"now", "arguments":{"b": 1,"a":"é"}}\n</tool_call>'


async def streamed(client: Any, **asked: Any) -> list[dict[str, Any]]:
    async with client.post(stream=True, **asked) as response:
        body = await response.read()
    assert body.endswith(b"data: [DONE]\n\n")
    return fields(body)


async def test_a_whole_answer_has_what_was_asked_for_and_nothing_else():
    async with served(Letters()) as client:
        status, plain = await client.ask()
        _, full = await client.ask(return_token_ids=True, logprobs=True)
    assert status == 200
    (choice,) = plain["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello."},
        "finish_reason": "stop",
    }
    assert plain["usage"] == {"prompt_tokens": 7, "completion_tokens": 7, "total_tokens": 14}
    assert "prompt_token_ids" not in plain
    (choice,) = full["choices"]
    assert choice["token_ids"] == [*b"Hello.", 0]
    assert choice["token_versions"] == [["0", 1]] * 4 + [["1", 1]] * 3
    assert [each["logprob"] for each in choice["logprobs"]["content"]][:2] == [-0.72, -1.01]
    assert full["prompt_token_ids"] == [*b"user:hi"]


async def test_a_stream_has_the_same_content_token_by_token():
    async with served(Letters()) as client:
        events = await streamed(
            client, return_token_ids=True, stream_options={"include_usage": True}
        )
        without = await streamed(client)
    first, *pieces, usage = events
    assert first["prompt_token_ids"] == [*b"user:hi"]
    choices = [piece["choices"][0] for piece in pieces]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello."
    assert [choice["token_ids"] for choice in choices] == [[token] for token in [*b"Hello.", 0]]
    assert [choice["token_versions"] for choice in choices][3:5] == [[["0", 1]], [["1", 1]]]
    assert [choice["finish_reason"] for choice in choices] == [None] * 6 + ["stop"]
    assert usage["usage"]["completion_tokens"] == 7 and not usage["choices"]
    assert not any("usage" in event or "token_ids" in event["choices"][0] for event in without)


async def test_settings_reach_the_engine():
    engine = Letters()
    async with served(engine) as client:
        await client.ask()
        await client.ask(
            max_tokens=5, temperature=0.5, top_p=0.9, top_k=7, seed=1, stop=["a", ""], n=1
        )
        await client.ask(max_completion_tokens=6, max_tokens=9, stop="x", top_k=-1)
    assert engine.sampling == [
        SamplingParams(),
        SamplingParams(limit=5, temperature=0.5, top_p=0.9, top_k=7, seed=1, stop=("a",)),
        SamplingParams(limit=6, stop=("x",), top_k=0),
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "empty"),
        ({"messages": [1]}, "messages"),
        ({"n": 2}, "n above 1"),
        ({"tools": 3}, "tools"),
        ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "robot", "content": ""}]}, "no robots"),
    ],
)
async def test_unsupported_features_are_refused_by_name(asked, expected):
    async with served(Letters()) as client:
        for stream in (False, True):
            status, body = await client.ask(stream=stream, **asked)
            assert status == 400
            assert expected in body["error"]["message"]
            assert body["error"]["code"] == 400


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"messages": [{]}'])
async def test_an_invalid_body_is_a_400(body):
    async with served(Letters()) as client:
        status, answer = await client.send(body)
    assert (status, answer["error"]["type"]) == (400, "BadRequestError")


async def test_a_conversation_that_is_too_long_is_refused_in_a_form_the_gateway_recognizes():
    async with served(Letters()) as client:
        long = [{"role": "user", "content": "x" * 995}]
        for asked in ({"messages": long}, {"max_tokens": 994}):
            status, body = await client.ask(**asked)
            assert (status, "maximum context length is 1000" in body["error"]["message"]) == (
                400,
                True,
            )
        assert (await client.ask(max_tokens=993))[0] == 200


async def test_another_model_is_not_found():
    async with served(Letters()) as client:
        assert (await client.ask(model="letters"))[0] == 200
        status, body = await client.ask(model="other")
        assert (status, "'other' does not exist" in body["error"]["message"]) == (404, True)
        async with client.http.get(f"{client.url}/v1/nothing") as response:
            assert response.status == 404
        async with client.http.get(f"{client.url}/v1/chat/completions") as response:
            assert response.status == 404


async def test_only_requests_with_the_key_are_answered_and_health_is_public():
    async with served(Letters(), key="secret") as client:
        assert (await client.ask())[0] == 200
        for wrong in ("Bearer other", "Bearer ", "Bearer sécret"):
            headers = {"Authorization": wrong}
            async with client.http.get(f"{client.url}/v1/models", headers=headers) as response:
                assert response.status == 401
            async with client.http.get(f"{client.url}/health", headers=headers) as response:
                assert response.status == 200


async def test_a_key_that_is_not_utf8_is_wrong():
    async with served(Letters(), key="secret") as client:
        host, port = client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()


async def test_a_dead_engine_is_not_healthy():
    engine = Letters()
    async with served(engine) as client:
        engine.problem = "the device is gone"
        async with client.http.get(f"{client.url}/health") as response:
            assert response.status == 503
            assert "the device is gone" in await response.text()


async def test_a_failure_before_the_first_token_is_a_500():
    engine = Letters()
    engine.fails_after = 0
    async with served(engine) as client:
        for stream in (False, True):
            status, body = await client.ask(stream=stream)
            assert (status, body["error"]["message"]) == (500, "the device is on fire")


async def test_a_failure_within_a_stream_is_an_error_in_it():
    engine = Letters()
    engine.fails_after = 3
    async with served(engine) as client:
        events = await streamed(client)
        status, _ = await client.ask()
    assert events[-1]["error"] == {
        "message": "the device is on fire",
        "type": "InternalServerError",
        "code": 500,
    }
    assert status == 500


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_abandons_its_answer(stream):
    engine = Letters()
    engine.go_on.clear()
    async with served(engine) as client:
        asking = asyncio.create_task(client.ask(stream=stream))
        await until(lambda: engine.sampling)
        asking.cancel()
        await until(lambda: engine.given_up)
    assert engine.given_up == 1


async def test_tokens_are_counted_without_an_answer():
    engine = Letters()
    async with served(engine) as client:
        status, body = await client.ask(path="/tokenize")
    assert (status, body["count"], body["tokens"]) == (200, 7, [*b"user:hi"])
    assert not engine.sampling


async def test_a_probe_finds_everything():
    async with served(Letters(), key="k") as client:
        found = await probe(client.url, key="k", within=30)
    assert found.trains and found.streams_all and found.tools and found.count
    assert (found.model, found.context) == ("letters", 1000)


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_tools_that_were_offered_are_found(stream):
    async with served(Letters(CALL)) as client:
        if stream:
            pieces = [event["choices"][0] for event in await streamed(client, tools=TOOLS)]
            text = "".join(piece["delta"].get("content", "") for piece in pieces)
            message, finish = pieces[-1]["delta"], pieces[-1]["finish_reason"]
        else:
            choice = (await client.ask(tools=TOOLS))[1]["choices"][0]
            message, finish = choice["message"], choice["finish_reason"]
            text = message["content"]
    (call,) = message["tool_calls"]
    assert (text, finish) == ("So.", "tool_calls")
    assert call["function"] == {"name": "now", "arguments": '{"b": 1,"a":"é"}'}
    assert call["id"].startswith("call_")


async def test_without_tools_there_are_no_calls():
    async with served(Letters(CALL)) as client:
        choice = (await client.ask())[1]["choices"][0]
        declined = (await client.ask(tools=TOOLS, tool_choice="none"))[1]["choices"][0]
    assert choice["message"]["content"] == declined["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_sent_back_is_rendered_as_the_model_wrote_it(stream):
    engine = Letters(CALL)
    async with served(engine) as client:
        if stream:
            events = await streamed(client, tools=TOOLS)
            calls = events[-1]["choices"][0]["delta"]["tool_calls"]
        else:
            calls = (await client.ask(tools=TOOLS))[1]["choices"][0]["message"]["tool_calls"]
        function = {"name": "now", "arguments": json.dumps({"a": "é", "b": 1})}
        call = {"id": calls[0]["id"], "type": "function", "function": function}
        answer = {"role": "assistant", "content": "So.", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "noon"}
        await client.ask(messages=[answer, result], tools=TOOLS)
        assert engine.rendered[-1] == [{"role": "assistant", "content": CALL}, result]
        function["arguments"] = '{"a":"é","b":2}'
        await client.ask(messages=[answer, result], tools=TOOLS)
        assert engine.rendered[-1] == [answer, result]
