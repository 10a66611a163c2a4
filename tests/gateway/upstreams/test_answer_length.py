"""Length limits of answers: forwarded to servers, and applied by the scripted policy."""

from contextlib import asynccontextmanager

import pytest
from upstream_parts import BASH, CALL, HELLO, ask

from plimsoll.gateway.completions import Answer, Refusal
from plimsoll.gateway.upstreams.factory import make_upstream
from plimsoll.gateway.upstreams.openai_server import OpenAIServer, http_session
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.gateway.upstreams.scripted.server import ServerFeatures, serve_script

CONTEXT = 1000


@asynccontextmanager
async def server_with_context(context: int | None):
    """A server with a context of `CONTEXT` tokens, of which the client knows `context`."""
    async with (
        serve_script(HELLO, ServerFeatures(context=CONTEXT)) as served,
        http_session() as http,
    ):
        yield served, OpenAIServer(http, served.url, model="scripted", context=context)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("asked", [500, 1000, 32_000])
async def test_a_limit_of_half_the_context_or_more_is_dropped(field: str, asked: int):
    async with server_with_context(CONTEXT) as (served, server):
        answer = await server.answer(ask(**{field: asked}), CALL)
        assert field not in served.fields
    assert answer.finish == "stop"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_smaller_limit_is_forwarded_and_applied(field: str):
    async with server_with_context(CONTEXT) as (served, server):
        answer = await server.answer(ask(**{field: 5}), CALL)
        assert field in served.fields
    assert (answer.finish, answer.message.text) == ("length", "Hello")


async def test_a_limit_is_forwarded_if_the_context_is_unknown():
    async with server_with_context(None) as (served, server):
        with pytest.raises(Refusal) as refused:
            await server.answer(ask(max_tokens=32_000), CALL)
        assert "max_tokens" in served.fields
    assert refused.value.kind == "context_length"


@pytest.mark.parametrize("asked", [None, "many", 1.5, [], 0])
async def test_an_invalid_limit_is_left_to_the_server(asked: object):
    async with server_with_context(CONTEXT) as (served, server):
        try:
            await server.answer(ask(max_tokens=asked), CALL)
        except Refusal as refused:
            assert refused.kind == "bad_request"
        assert "max_tokens" in served.fields


async def test_the_probed_context_reaches_the_upstream():
    async with serve_script(HELLO, ServerFeatures(context=CONTEXT)) as served:
        upstream = await make_upstream([served.url])
        try:
            answer = await upstream.answer(ask(max_tokens=32_000), CALL)
            assert upstream.model == "scripted"
        finally:
            await upstream.close()
    assert answer.finish == "stop"


TURN = Turn(text="Grüße an alle", reasoning="Hm.", run="ls /tmp")


async def both(turn: Turn, limit: int) -> tuple[Answer, Answer, list[int]]:
    """An answer of a script in this process, the same over HTTP, and the ids of its stream."""
    script = Script(turns=(turn,))
    request = ask(tools=[BASH], max_tokens=limit)
    async with serve_script(script) as served, http_session() as http:
        server = OpenAIServer(http, served.url, model="scripted")
        whole = await server.answer(request, CALL)
        async with server.stream(request, CALL) as pieces:
            chunks = [chunk async for some in pieces for chunk in some]
    ids = [id for chunk in chunks for id in chunk.ids or ()]
    assert [chunk.finish for chunk in chunks if chunk.finish] == [whole.finish]
    return await ScriptedPolicy(script).answer(request, CALL), whole, ids


@pytest.mark.parametrize("limit", range(1, 60))
async def test_a_scripted_answer_respects_its_limit(limit: int):
    own, served, streamed = await both(TURN, limit)
    assert own.message == served.message
    assert own.finish == served.finish
    for answer in (own, served):
        assert answer.tokens is not None
        assert answer.usage is not None
        assert len(answer.tokens.answer) == answer.usage.answer <= limit
        assert answer.tokens.answer == streamed
        assert len(answer.tokens.logprobs or ()) == len(streamed)


async def test_an_answer_is_cut_within_its_reasoning_its_text_or_its_call():
    long, _, ids = await both(TURN, 1000)
    assert (long.finish, len(ids)) == ("tool_calls", 48)
    thought, _, _ = await both(TURN, 4)
    assert (thought.finish, thought.message.reasoning, thought.message.text) == ("length", "Hm", "")
    # A multi-byte character is dropped as a whole.
    text, _, _ = await both(TURN, 8)
    assert (text.message.reasoning, text.message.text) == ("Hm.", "Gr")
    called, _, _ = await both(TURN, 35)
    (call,) = called.message.calls
    assert (called.finish, call.name) == ("length", "bash")
    assert '{"command":"ls /tmp"}'.startswith(call.arguments)
