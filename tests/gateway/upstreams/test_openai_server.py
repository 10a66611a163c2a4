import asyncio
import gc
import logging

import msgspec
import pytest
from aiohttp import web
from upstream_parts import BASH, CALL, HELLO, ask, client, streamed, text_of, user

from plimsoll.config.training import TrainingConfig
from plimsoll.gateway.chat_server.server import listen
from plimsoll.gateway.completions import Refusal, Request
from plimsoll.gateway.upstreams import openai_server
from plimsoll.gateway.upstreams.capabilities import SupportedFields
from plimsoll.gateway.upstreams.failures import UpstreamFailure, failure_from_status
from plimsoll.gateway.upstreams.openai_server import (
    OpenAIServer,
    Timeouts,
    http_session,
)
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.gateway.upstreams.scripted.server import ServerFeatures, serve_script
from plimsoll.testing.waiting import until

SAYS = HELLO.turns[0].text
SHORT = Timeouts(first=1.0, between=1.0, total=2.0)


async def refused(awaitable) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        await awaitable
    return refusal.value


async def test_a_whole_answer_has_text_tokens_and_its_own_fields():
    async with serve_script(HELLO) as server, client(server) as policy:
        answer = await policy.answer(ask(user("hi"), temperature=0.5), CALL)
        assert server.fields == [
            "logprobs",
            "messages",
            "model",
            "return_token_ids",
            "stream",
            "temperature",
        ]
    assert answer.message.text == SAYS
    assert answer.tokens and answer.tokens.prompt and answer.tokens.logprobs
    assert len(answer.tokens.answer) == len(answer.tokens.logprobs) == len(SAYS) + 1
    assert answer.usage and answer.usage.answer == len(SAYS) + 1
    assert msgspec.json.decode((answer.raw or {})["id"]) == answer.id


async def test_a_stream_has_the_same_content_as_the_whole_answer():
    script = Script(turns=(Turn(text="I look.", reasoning="Hm.", run="ls"),))
    async with serve_script(script) as server, client(server) as policy:
        request = ask(user("hi"), tools=[BASH])
        whole = await policy.answer(request, CALL)
        chunks = await streamed(policy, request)
    assert whole.tokens
    assert text_of(chunks) == whole.message.text
    assert [i for chunk in chunks for i in chunk.ids or ()] == whole.tokens.answer
    assert [p for chunk in chunks for p in chunk.logprobs or ()] == whole.tokens.logprobs
    assert chunks[0].prompt_ids == whole.tokens.prompt
    assert chunks[-1].only_usage and chunks[-1].usage == whole.usage
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["tool_calls"]
    assert "".join(call.name for chunk in chunks for call in chunk.calls) == "bash"


async def test_only_supported_fields_are_requested():
    async with serve_script(HELLO, ServerFeatures(strict=True, token_ids=False)) as server:
        async with client(server) as policy:
            assert (await refused(policy.answer(ask(), CALL))).kind == "bad_request"
        async with client(
            server, supported=SupportedFields(token_ids=False, stream_usage=False)
        ) as policy:
            assert (await policy.answer(ask(), CALL)).message.text == SAYS
            await streamed(policy, ask())
            assert server.fields == ["logprobs", "messages", "model", "stream"]
        async with client(
            server, supported=SupportedFields(logprobs=False, token_ids=False, stream_usage=False)
        ) as policy:
            await policy.answer(ask(), CALL)
            assert server.fields == ["messages", "model", "stream"]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("drop", "upstream"),
        ("cut", "upstream"),
        ("garbage", "upstream"),
        ("bad-call", "upstream"),
        ("hang", "timeout"),
        ("stall", "timeout"),
        (500, "upstream"),
        (502, "upstream"),
        (401, "upstream"),
        (404, "upstream"),
        (429, "busy"),
        (503, "busy"),
        (422, "bad_request"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_fault_of_a_server_has_its_refusal(fault, kind, stream):
    timeouts = SHORT if kind == "timeout" else None
    async with serve_script(HELLO) as server, client(server, timeouts=timeouts) as policy:
        server.faults.append(fault)
        call = streamed(policy, ask()) if stream else policy.answer(ask(), CALL)
        refusal = await refused(call)
        assert refusal.kind == kind
        assert server.url in refusal.message or fault == 422
        # Server and client work on normally.
        assert (await policy.answer(ask(), CALL)).message.text == SAYS


@pytest.mark.parametrize(("status", "advice"), [(401, "Check the key"), (404, "Check its URL")])
def test_a_long_error_page_does_not_cut_off_the_advice(status: int, advice: str):
    page = b"<html>" + b"x" * 10_000 + b"</html>"
    assert advice in failure_from_status("http://host/v1", status, page).message


def test_an_error_that_is_not_utf8_is_reported():
    failure = failure_from_status("http://host/v1", 500, b'{"detail": "caf\xe9"}')
    assert failure.kind == "upstream" and "caf" in failure.message


@pytest.mark.parametrize(("status", "kind"), [(500, "upstream"), (503, "busy")])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_with_a_cut_body_is_classified_by_its_status(status, kind, stream):
    async def cut(http: web.BaseRequest) -> web.StreamResponse:
        await http.content.read()
        response = web.StreamResponse(status=status, headers={"Content-Length": "500"})
        await response.prepare(http)
        await response.write(b"")  # the headers, and nothing after them
        assert http.transport is not None
        http.transport.close()
        return response

    async with listen(cut) as port, http_session() as http:
        policy = OpenAIServer(http, f"http://127.0.0.1:{port}/v1", model="m")
        failure = await refused(streamed(policy, ask()) if stream else policy.answer(ask(), CALL))
    assert isinstance(failure, UpstreamFailure)
    assert (failure.kind, failure.retryable, failure.replica_fault) == (kind, status == 503, True)
    assert f"answered {status}" in failure.message


async def test_a_started_stream_has_a_shorter_timeout():
    timeouts = Timeouts(first=60, between=0.2)
    async with serve_script(HELLO) as server, client(server, timeouts=timeouts) as policy:
        server.pace = 0.01
        server.faults.append("stall")
        async with asyncio.timeout(30):
            assert (await refused(streamed(policy, ask()))).kind == "timeout"


async def test_early_headers_do_not_shorten_the_first_timeout():
    """Servers send the headers before a queue, a long prompt or new weights."""

    async def handle(http: web.BaseRequest) -> web.StreamResponse:
        await http.content.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        await asyncio.sleep(0.3)
        await response.write(
            b": still there\n\n"
        )  # a comment is not an event: the first timeout still applies
        await asyncio.sleep(0.6)
        piece = {"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}
        await response.write(b"data: %s\n\n" % msgspec.json.encode({"choices": [piece]}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async with listen(handle) as port, http_session() as http:
        url = f"http://127.0.0.1:{port}/v1"
        policy = OpenAIServer(http, url, model="m", timeouts=Timeouts(first=30, between=0.2))
        assert text_of(await streamed(policy, ask())) == "hi"
        policy = OpenAIServer(http, url, model="m", timeouts=Timeouts(first=0.4, between=30))
        assert (await refused(streamed(policy, ask()))).kind == "timeout"


def test_a_stream_may_be_silent_while_new_weights_are_loaded():
    assert Timeouts().between >= TrainingConfig().update_seconds
    assert Timeouts().first >= TrainingConfig().update_seconds


async def test_half_an_event_is_not_an_answer():
    async with serve_script(HELLO) as server, client(server) as policy:
        server.faults.append("half-event")
        refusal = await refused(streamed(policy, ask()))
        assert (refusal.kind, "before its answer was complete" in refusal.message) == (
            "upstream",
            True,
        )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_answer_is_read_to_its_end(stream):
    async with serve_script(HELLO) as server, client(server) as policy:
        server.faults.append("slow")
        request = ask()
        if stream:
            assert text_of(await streamed(policy, request)) == SAYS
        else:
            assert (await policy.answer(request, CALL)).message.text == SAYS


async def test_an_unreachable_server_is_reported():
    async with serve_script(HELLO) as server:
        pass
    async with client(server) as policy:
        for call in (policy.answer(ask(), CALL), streamed(policy, ask())):
            refusal = await refused(call)
            assert refusal.kind == "upstream"
            assert "cannot be reached" in refusal.message


async def test_a_conversation_that_is_too_long_has_its_own_refusal():
    async with serve_script(HELLO, ServerFeatures(context=100)) as server, client(server) as policy:
        for call in (
            policy.answer(ask(user("x" * 200)), CALL),
            streamed(policy, ask(user("x" * 200))),
        ):
            assert (await refused(call)).kind == "context_length"


@pytest.mark.parametrize("point", ["hang", "stall"])
@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_a_call_reaches_the_server(point, stream):
    async with serve_script(HELLO) as server, client(server) as policy:
        server.faults.append(point)
        call = streamed(policy, ask()) if stream else policy.answer(ask(), CALL)
        task = asyncio.create_task(call)
        await until(lambda: server.in_flight == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.in_flight == 0)
        assert server.disconnects == 1


async def test_leaving_a_stream_early_reaches_the_server():
    async with serve_script(HELLO) as server, client(server) as policy:
        server.pace = 0.05
        async with policy.stream(ask(), CALL) as pieces:
            await anext(aiter(pieces))
        await until(lambda: server.in_flight == 0, 1.0)
        assert server.disconnects == 1


async def test_connections_are_reused_and_no_task_is_left():
    before = asyncio.all_tasks()
    async with serve_script(HELLO) as server, client(server) as policy:
        server.pace = 0.001
        for _ in range(10):
            await policy.answer(ask(), CALL)
            await streamed(policy, ask())
        connector = policy._http.connector
        assert connector is not None
        assert len(connector._conns) == 1
        assert sum(len(kept) for kept in connector._conns.values()) == 1
        for fault in ("drop", "cut", "garbage", 500, "half-event"):
            server.faults.extend([fault, fault])
            await refused(streamed(policy, ask()))
            if fault != "half-event":
                await refused(policy.answer(ask(), CALL))
            server.faults.clear()
        await until(lambda: not connector._acquired)
    await until(lambda: asyncio.all_tasks() == before)


async def test_a_running_stream_does_not_hold_the_request():
    async with serve_script(HELLO) as server, client(server) as policy:
        server.pace = 0.02
        async with policy.stream(ask(user("a body to be let go of")), CALL) as pieces:
            await anext(aiter(pieces))
            gc.collect()
            assert not [thing for thing in gc.get_objects() if isinstance(thing, Request)]


async def test_the_servers_key_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with serve_script(HELLO) as server:
        server.key = "sesame-open"
        async with client(server, key="sesame-open") as policy:
            assert (await policy.answer(ask(), CALL)).message.text == SAYS
        async with client(server, key="sesame-shut") as policy:
            refusal = await refused(policy.answer(ask(), CALL))
    assert "Check the key" in refusal.message
    shown = f"{caplog.text} {refusal.message} {policy!r}"
    assert "sesame" not in shown


async def test_a_body_of_several_megabytes_arrives_whole():
    async with serve_script(lambda asked: str(len(asked.last))) as server:
        server.features.context = 10**9
        async with client(server, supported=SupportedFields(False, False)) as policy:
            answer = await policy.answer(ask(user("x" * 3_000_000)), CALL)
    assert answer.message.text == "3000000"


async def test_an_endless_answer_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(openai_server, "MAX_ANSWER_BYTES", 100)
    async with serve_script(HELLO) as server, client(server) as policy:
        refusal = await refused(policy.answer(ask(), CALL))
        assert (refusal.kind, "longer than" in refusal.message) == ("upstream", True)
        await until(lambda: server.in_flight == 0)


async def test_tokens_are_counted_if_the_server_can():
    async with serve_script(HELLO) as server, client(server) as policy:
        answer = await policy.answer(ask(), CALL)
        assert answer.usage
        assert await policy.count(ask()) == answer.usage.prompt
        server.features.count = False
        assert (await refused(policy.count(ask()))).kind == "unsupported"


@pytest.mark.parametrize(
    "response_body", [b"{}", b"<html>", b'{"tokens":[1,2]}', b'{"\xff":1}', b'{"x":' + b"[" * 5000]
)
async def test_an_answer_without_a_count_is_not_retried(response_body: bytes):
    asked: list[str] = []

    async def handle(http: web.BaseRequest) -> web.Response:
        asked.append(http.path)
        return web.Response(body=response_body, content_type="application/json")

    async with listen(handle) as port, http_session() as http:
        policy = OpenAIServer(http, f"http://127.0.0.1:{port}/v1", model="m")
        refusal = await refused(policy.count(ask()))
    assert (refusal.kind, asked) == ("unsupported", ["/tokenize"])


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
async def test_a_whole_answer_instead_of_a_stream_is_reported(kind: str):
    async def whole(_: web.BaseRequest) -> web.Response:
        return web.Response(text="{}", content_type=kind)

    runner = web.ServerRunner(web.Server(whole))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with http_session() as http:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            with pytest.raises(UpstreamFailure, match=f"but {kind} came") as failed:
                await streamed(OpenAIServer(http, url, model="m"), ask())
    finally:
        await runner.cleanup()
    assert not failed.value.retryable


@pytest.mark.parametrize(
    ("health", "models", "well"),
    [
        (200, 500, True),
        (500, 200, False),
        (503, 200, False),
        (404, 200, True),
        (404, 502, False),
        (401, 401, True),
        (302, 403, True),
        (405, 404, True),
    ],
)
async def test_only_server_errors_make_a_server_unhealthy(health, models, well):
    async def answer(request: web.BaseRequest) -> web.Response:
        status = health if request.path == "/health" else models
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with listen(answer, "127.0.0.1") as port, http_session() as http:
        server = OpenAIServer(http, f"http://127.0.0.1:{port}/v1", model="m")
        problem = await server.problem(30)
        assert (f"{server.url} answered 50" in problem) if not well else problem == ""
    async with http_session() as http:
        problem = await OpenAIServer(http, server.url, model="m").problem(30)
        assert f"{server.url} cannot be reached" in problem
