"""The path of one request in every dialect: received, answered, recorded."""

import asyncio
import contextlib
import errno
import os

import anthropic
import openai
import pytest
from gateway_parts import (
    ENDPOINTS,
    HELLO,
    ServedSession,
    Stepped,
    asked,
    done,
    say,
    serving,
)
from raw_http import connected

from plimsoll.core.versions import Version
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.upstreams.factory import make_upstream
from plimsoll.gateway.upstreams.gate import Gate
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.gateway.upstreams.scripted.server import serve_script
from plimsoll.testing.waiting import until

every_path = pytest.mark.parametrize("path", ENDPOINTS)
ENDS = (b"[DONE]", b"response.completed", b"message_stop")
"""The bytes that mark an answer as complete, in each dialect."""
both_ways = pytest.mark.parametrize("stream", [False, True])


@every_path
@both_ways
async def test_an_answer_reaches_the_agent_and_the_trajectory(
    served: ServedSession, stepped, path, stream
):
    asking = served.asking(path, stream=stream)
    done(await stepped.call(), "so it ", "is")
    status, body = await asking
    assert status == 200
    assert b"so it " in body
    trajectory = await served.read()
    [exchange] = trajectory.exchanges
    assert trajectory.answer_of(exchange).text == "so it is"
    assert trajectory.messages_of(exchange)[0].text == "hello"
    assert exchange.dialect in path or exchange.dialect == "messages"
    assert trajectory.troubles == []
    assert trajectory.opened.about == {"task": "t"}


async def test_the_openai_client_is_served(tmp_path):
    async with serving(ScriptedPolicy(lambda asked: f"heard {asked.last}"), tmp_path) as served:
        client = openai.AsyncOpenAI(base_url=served.access.openai, api_key=served.access.key)
        async with client:
            whole = await client.chat.completions.create(model="m", messages=HELLO)
            assert whole.choices[0].message.content == "heard hello"
            assert whole.model == "m"
            content = ""
            stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
            async for chunk in stream:
                content += chunk.choices[0].delta.content or ""
            assert content == "heard hello"
            response = await client.responses.create(model="m", input="again")
            assert response.output_text == "heard again"
            assert [model.id async for model in await client.models.list()] == ["policy"]
            assert (await client.models.retrieve("any")).id == "any"
        assert served.session.exchanges == 3


async def test_the_anthropic_client_is_served(tmp_path):
    async with serving(ScriptedPolicy(lambda asked: f"heard {asked.last}"), tmp_path) as served:
        client = anthropic.AsyncAnthropic(
            base_url=served.access.anthropic, api_key=served.access.key
        )
        async with client:
            more = {"model": "m", "messages": HELLO}
            whole = await client.messages.create(max_tokens=100, **more)
            assert whole.content[0].text == "heard hello"
            async with client.messages.stream(max_tokens=100, **more) as stream:
                assert await stream.get_final_text() == "heard hello"
            assert (await client.messages.count_tokens(**more)).input_tokens > 0
            assert [model.id async for model in await client.models.list()] == ["policy"]
        assert served.session.exchanges == 2


async def test_pieces_are_sent_as_they_arrive(served: ServedSession, stepped: Stepped):
    opening = served.start_stream()
    step = await stepped.call()
    say(step, "one")
    async with await opening as reply:
        assert b"one" in await reply.content.readuntil(b"\n\n")
        assert served.session.exchanges == 0
        done(step, "two")
        rest = await reply.read()
    assert b"two" in rest
    assert rest.endswith(b"data: [DONE]\n\n")


@every_path
async def test_an_exchange_is_recorded_before_the_end_of_its_stream_is_sent(
    served: ServedSession, stepped: Stepped, path: str, monkeypatch: pytest.MonkeyPatch
):
    """The agent receives the end of its answer only after the answer is in the file."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    opening = served.start_stream(path)
    step = await stepped.call()
    say(step, "one")
    async with await opening as reply:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            done(step, "two")
            body = await reply.read()
    assert b"could not be recorded" in body
    assert not any(word in body for word in ENDS)
    assert "No space left" in served.session.failure


@every_path
async def test_a_stream_that_fails_midway_reports_it_and_is_not_recorded(served, stepped, path):
    asking = served.asking(path, stream=True)
    say(await stepped.call(), "one", Refusal("upstream", "the engine died"))
    status, body = await asking
    assert status == 200
    assert b"the engine died" in body
    assert not any(word in body for word in ENDS)
    assert served.session.failure == "the engine died"
    trajectory = await served.read()
    assert trajectory.exchanges == []
    assert [(trouble.what, trouble.detail) for trouble in trajectory.troubles] == [
        ("upstream", "the engine died")
    ]


@every_path
@both_ways
async def test_a_refusal_before_the_first_piece_has_a_status_of_its_own(
    served: ServedSession, stepped: Stepped, path: str, stream: bool
):
    asking = served.asking(path, stream=stream)
    say(await stepped.call(), Refusal("context_length", "too long by 5"))
    status, body = await asking
    assert status == 400
    assert b"too long" in body or b"5" in body
    assert served.session.ending == "budget"  # until it answers again
    asking = served.asking(path, 1, stream=stream)
    done(await stepped.call(1), "fine")
    assert (await asking)[0] == 200
    assert served.session.ending is None


async def test_a_failure_is_forgotten_once_the_policy_answers(
    served: ServedSession, stepped: Stepped
):
    asking = served.asking()
    say(await stepped.call(), Refusal("busy", "all replicas are down"))
    assert (await asking)[0] == 503
    assert served.session.failure == "all replicas are down"
    asking = served.asking(number=1)
    done(await stepped.call(1), "fine")
    assert (await asking)[0] == 200
    assert served.session.failure == ""


async def test_a_truncated_stream_is_not_an_answer(served: ServedSession, stepped: Stepped):
    """An upstream that closes without a finish reason has not completed its answer."""

    class Early(Stepped):
        async def _chunks(self):
            async with contextlib.aclosing(super()._chunks()) as chunks:
                async for piece in chunks:
                    if piece[0].finish is None:
                        yield piece

    early = Early()
    served.session._upstream = early
    asking = served.asking(stream=True)
    done(await early.call(), "one")
    assert b"ended before" in (await asking)[1]
    assert served.session.exchanges == 0


async def test_no_token_gets_a_newer_version_than_the_one_that_generated_it(
    served: ServedSession, stepped: Stepped
):
    """An answer has the version at the time of its request, even if some pieces came later: they
    may have been buffered."""
    opening = served.start_stream()
    step = await stepped.call()
    say(step, "a", "b")
    async with await opening as reply:
        await reply.content.readuntil(b"\n\n")
        await reply.content.readuntil(b"\n\n")
        stepped.version = Version(0, 1)
        done(step, "c")
        await reply.read()
    asking = served.asking(number=1)
    step = await stepped.call(1)
    stepped.version = Version(0, 2)
    done(step, "d")
    await asking
    streamed, whole = (await served.read()).exchanges
    assert streamed.version == Version(0, 0)
    assert streamed.tokens is not None and whole.tokens is not None
    assert streamed.tokens.versions == ((Version(0, 0), 3),)
    assert whole.tokens.versions == ((Version(0, 1), 3),)


async def test_buffered_pieces_keep_the_version_that_generated_them(tmp_path):
    """The server is done before the weights change, while most of its answer is still buffered."""
    script = Script(turns=(Turn(text="word " * 12_000),))
    async with serve_script(script) as server:
        gate = await make_upstream([server.url])
        asked_before = server.requests
        async with serving(gate, tmp_path) as served:
            raw = await connected(served)
            raw.pause()
            raw.post("/v1/chat/completions", asked("/v1/chat/completions", stream=True))
            await until(lambda: server.requests > asked_before)
            with contextlib.suppress(TimeoutError):  # the system's buffers may be too small for it
                await until(lambda: not server.in_flight, 3)
            gate.resume(Version(0, 1))
            raw.resume()
            await raw.until(b"[DONE]")
            (exchange,) = (await served.read()).exchanges
        await gate.close()
    assert exchange.tokens is not None
    assert exchange.tokens.versions == ((Version(0, 0), 60_001),)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waited_for_new_weights_gets_their_version(tmp_path, stream: bool):
    gate = Gate(ScriptedPolicy(lambda _: "fine"))
    async with serving(gate, tmp_path) as served:
        await gate.pause()
        asking = served.asking(stream=stream)
        await until(lambda: gate.held)
        gate.resume(Version(0, 5))
        assert (await asking)[0] == 200
        (exchange,) = (await served.read()).exchanges
    assert exchange.version == Version(0, 5)
    assert exchange.tokens is not None
    assert [version for version, _ in exchange.tokens.versions] == [Version(0, 5)]


@every_path
async def test_whole_answers_are_streamed_for_an_upstream_without_streams(
    quick_pings: None, served: ServedSession, stepped: Stepped, path: str
):
    stepped.streams = False
    async with await served.start_stream(path) as reply:
        pinged = await reply.content.readuntil(b"\n\n")
        assert b"ping" in pinged or b"response.created" in pinged
        done(await stepped.call(), "all at once")
        body = pinged + await reply.read()
    assert b"all at once" in body
    assert body.count(b"event: response.created") == (path == "/v1/responses")
    assert any(word in body for word in ENDS)
    assert served.session.exchanges == 1


async def test_a_silent_stream_is_pinged(
    quick_pings: None, served: ServedSession, stepped: Stepped
):
    async with await served.start_stream() as reply:
        step = await stepped.call()
        assert b"ping" in await reply.content.readuntil(b"\n\n")
        say(step, "one")
        seen = b""
        while b"one" not in seen:
            seen = await reply.content.readuntil(b"\n\n")
        assert b"ping" in await reply.content.readuntil(b"\n\n")
        done(step, "two")
        assert b"two" in await reply.read()


async def test_a_refusal_after_a_ping_comes_as_an_event(
    quick_pings: None, served: ServedSession, stepped: Stepped
):
    async with await served.start_stream() as reply:
        say(await stepped.call(), Refusal("timeout", "nothing came"))
        assert b"nothing came" in await reply.read()


async def test_concurrent_requests_are_answered_independently(
    served: ServedSession, stepped: Stepped
):
    asking = [served.asking(number=number) for number in range(8)]
    await until(lambda: len(stepped.calls) == 8)
    for number, step in enumerate(reversed(stepped.calls)):
        done(step, f"answer {number}")
    bodies = [body for _, body in await asyncio.gather(*asking)]
    assert len(set(bodies)) == 8
    assert served.session.exchanges == 8
    assert served.session.tokens == 80


async def test_counting_is_refused_if_the_policy_cannot(served: ServedSession):
    class Uncounted(Stepped):
        async def count(self, *_):
            raise Refusal("unsupported", "nobody counts here")

    served.session._upstream = Uncounted()
    url = served.access.root + "/v1/messages/count_tokens"
    async with served.client.post(url, json={"model": "m", "messages": HELLO}) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["message"] == "nobody counts here"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/messages", 405),
        ("POST", "/v1/models", 405),
        ("HEAD", "/v1/messages", 405),
        ("OPTIONS", "/v1/responses", 204),
        ("POST", "/v1/completions", 404),
        ("GET", "", 404),
        ("GET", "/", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/v1/%2e%2e/messages", 404),
    ],
)
async def test_unknown_paths_are_reported(
    served: ServedSession, method: str, path: str, status: int
):
    async with served.client.request(method, served.access.root + path) as reply:
        assert reply.status == status
        body = await reply.read()
        assert method in ("HEAD", "OPTIONS") or b"error" in body


async def test_paths_outside_of_sessions_are_not_found(served: ServedSession):
    for path in ("/", "/metrics", "/healthz", "/sessions", "/s", "/s/", "/v1/models"):
        url = f"http://127.0.0.1:{served.gateway.port}{path}"
        async with served.client.get(url) as reply:
            assert reply.status in (401, 404), path
            assert "error" in await reply.json()
