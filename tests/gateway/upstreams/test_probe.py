import asyncio
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from upstream_parts import BASH, CALL, HELLO, ask, streamed, text_of, user

from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.gateway.upstreams import replicas
from plimsoll.gateway.upstreams.capabilities import (
    Capabilities,
    SupportedFields,
    render_capabilities,
)
from plimsoll.gateway.upstreams.factory import KEY_VARIABLE, make_upstream, probe_policy
from plimsoll.gateway.upstreams.openai_server import normal_url
from plimsoll.gateway.upstreams.probe import probe
from plimsoll.gateway.upstreams.protocol import CallContext
from plimsoll.gateway.upstreams.scripted.script import CallSpec, Script, Turn
from plimsoll.gateway.upstreams.scripted.server import ServerFeatures, serve_script
from plimsoll.testing.waiting import until

SAYS = HELLO.turns[0].text


async def found(offers: ServerFeatures) -> Capabilities:
    async with serve_script(HELLO, offers) as server:
        return await probe(server.url, within=30)


async def test_a_full_featured_server_is_recognized():
    seen = await found(ServerFeatures(context=32_768))
    assert seen.trains and seen.streams_all and seen.tools and seen.count and seen.text
    assert (seen.model, seen.models, seen.context) == ("scripted", ("scripted",), 32_768)
    text = "\n".join(render_capabilities(seen))
    assert "training   possible" in text and "evaluation possible" in text
    assert "to change" not in text


@pytest.mark.parametrize("strict", [False, True])
async def test_a_text_only_server_supports_evaluation_only(strict):
    seen = await found(ServerFeatures(logprobs=False, token_ids=False, count=False, strict=strict))
    assert seen.text and not (seen.logprobs or seen.token_ids or seen.prompt_ids or seen.count)
    assert seen.supported_fields == SupportedFields(logprobs=False, token_ids=False)
    assert seen.streams_all and not seen.trains
    text = "\n".join(render_capabilities(seen))
    assert "evaluation possible" in text
    assert "training   not possible: it needs token ids and log probabilities" in text
    assert "return_token_ids" in text


@pytest.mark.parametrize("strict", [False, True])
async def test_a_server_with_log_probabilities_only_is_recognized(strict):
    seen = await found(ServerFeatures(token_ids=False, strict=strict))
    assert seen.logprobs and not seen.token_ids and not seen.trains
    assert seen.supported_fields == SupportedFields(token_ids=False)


async def test_streams_without_all_ids_are_not_requested():
    seen = await found(ServerFeatures(stream_ids=False))
    assert seen.trains and seen.streams and not seen.streams_all
    assert "streams them itself" in "\n".join(render_capabilities(seen))


CALLING = Script(turns=(Turn(calls=(CallSpec(name="now"),)),))
THINKING = Script(turns=(Turn(reasoning="Well. " * 30, calls=(CallSpec(name="now"),)),))


async def test_streams_that_lose_the_ids_of_calls_are_not_requested():
    lossy = ServerFeatures(stream_call_ids=False)
    for script in (CALLING, THINKING, HELLO):
        async with serve_script(script, lossy) as server:
            seen = await probe(server.url, within=30)
        assert seen.trains and seen.stream_ids and not seen.streams_all, script


async def test_streams_without_a_seen_call_are_not_considered_complete():
    seen = await found(ServerFeatures(declares_ids=False))
    assert seen.stream_ids and seen.tools and not seen.calls and not seen.streams_all
    assert "called no tool when asked to" in "\n".join(render_capabilities(seen))


async def test_streams_with_a_call_that_has_all_ids_are_complete():
    for script in (CALLING, THINKING):
        async with serve_script(script, ServerFeatures(declares_ids=False)) as server:
            seen = await probe(server.url, within=30)
        assert seen.calls and seen.tool_stream_ids and seen.streams_all, script


async def test_missing_tools_come_with_a_suggestion():
    seen = await found(ServerFeatures(tools=False))
    assert not seen.tools and seen.streams_all
    assert "--enable-auto-tool-choice" in "\n".join(render_capabilities(seen))


async def test_an_unusable_server_reports_why():
    async with serve_script(HELLO) as server:
        server.key = "sesame"
        refused = await probe(server.url, key="wrong", within=30)
        assert (await probe(server.url, key="sesame", within=30)).text
    assert "Check the key" in refused.problem and "wrong" not in refused.problem
    gone = await probe(server.url, within=30)
    assert "cannot be reached" in gone.problem
    assert "neither evaluation nor training" in "\n".join(render_capabilities(gone))


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, b"not found", "answered 404: not found. Check its URL (it ends in /v1)"),
        (405, b"not allowed", "/models answered 405. Check its URL (it ends in /v1)"),
        (500, b"oops", "answered 500: oops"),
        (503, b"loading", "answered 503: loading"),
        (
            200,
            b"<html>",
            "/models did not return a JSON list of models. Check its URL (it ends in /v1)",
        ),
        (200, b'{"data":[{"id":"\xff"}]}', "/models did not return a JSON list of models."),
    ],
)
async def test_a_failed_model_list_reports_the_servers_answer(
    status: int, body: bytes, expected: str
):
    async def models(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        problem = (await probe(url, within=30)).problem
    assert problem.startswith(f"the policy at {url} ")
    assert expected in problem
    assert "--model" not in problem


async def test_a_hanging_server_does_not_block_the_probe():
    async with serve_script(HELLO) as server:
        server.faults.extend(["hang"] * 20)
        seen = await probe(server.url, within=0.2)
    assert "did not answer in time" in seen.problem


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8000/v1"),
        ("http://gpu-1:8000/", "http://gpu-1:8000/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("https://host/openai/v1", "https://host/openai/v1"),
    ],
)
def test_a_url_is_accepted_in_common_spellings(given, url):
    assert normal_url(given) == url


@pytest.mark.parametrize("given", ["gpu-1:8000", "", "ftp://x", "http://", "http://[x"])
def test_an_invalid_url_is_refused(given):
    with pytest.raises(UsageError, match="http://HOST:PORT/v1"):
        normal_url(given)


def test_a_url_with_a_password_is_refused_without_showing_it():
    with pytest.raises(UsageError) as error:
        normal_url("http://me:sesame@host/v1")
    assert "sesame" not in str(error.value)


async def test_an_upstream_is_created_from_urls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEY_VARIABLE, "sesame")
    async with (
        serve_script(HELLO) as one,
        serve_script(HELLO, ServerFeatures(stream_ids=False)) as two,
    ):
        one.key = two.key = "sesame"
        upstream = await make_upstream([one.url, two.url])
        try:
            # One server's streams lack ids, so streams are not requested from any.
            assert not upstream.streams
            assert (await upstream.answer(ask(), CALL)).message.text == SAYS
            assert text_of(await streamed(upstream, ask())) == SAYS
            assert [state.url for state in upstream.replicas] == [one.url, two.url]
        finally:
            await upstream.close()
        streaming = await make_upstream([one.url])
        assert streaming.streams
        await streaming.close()


@pytest.mark.parametrize(
    ("offers", "differs"),
    [
        (
            ServerFeatures(token_ids=False),
            "token ids of answers (no, not yes), token ids of prompts",
        ),
        (ServerFeatures(token_ids=False, strict=True), "token ids of answers (no, not yes)"),
        (ServerFeatures(logprobs=False), "log probabilities (no, not yes)"),
        (ServerFeatures(tools=False), "tools (no, not yes)"),
        (ServerFeatures(context=4096), "the context (4096, not 1000000)"),
        (ServerFeatures(count=False), "counting of tokens (no, not yes)"),
    ],
)
async def test_replicas_that_differ_are_refused(offers, differs):
    async with serve_script(HELLO) as one, serve_script(HELLO, offers) as two:
        with pytest.raises(PolicyError) as refused:
            await make_upstream([one.url, two.url])
    assert f"{two.url} differs from the one at {one.url}" in str(refused.value)
    assert differs in str(refused.value)


async def test_a_replica_of_another_model_is_refused():
    async with serve_script(HELLO) as one, serve_script(HELLO) as two:
        two.script_model.model = "another"
        with pytest.raises(PolicyError, match=r"the model \(another, not scripted\)"):
            await probe_policy([one.url, two.url])


async def test_an_unusable_replica_is_refused_even_if_another_works():
    async with serve_script(HELLO) as one, serve_script(HELLO) as two:
        two.key = "sesame"
        with pytest.raises(PolicyError, match=f"{two.url} .*Check the key"):
            await probe_policy([one.url, two.url])
        two.key, two.features.other_models = "", ("adapter",)
        with pytest.raises(PolicyError, match=f"{two.url} serves scripted, adapter; name one"):
            await probe_policy([one.url, two.url])


async def test_an_unavailable_replica_is_warned_of_and_used_once_it_is_up(caplog, monkeypatch):
    monkeypatch.setattr(replicas, "FIRST_COOLDOWN", 0.05)
    async with serve_script(HELLO) as away:
        port = int(away.url.rsplit(":", 1)[1].removesuffix("/v1"))
    async with serve_script(HELLO) as there:
        upstream = await make_upstream([away.url, there.url])
        assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
            f"the policy at {away.url} cannot be reached: Connection refused; "
            "it is not used until it is up"
        ]
        try:
            assert (await upstream.answer(ask(), CALL)).message.text == SAYS
            async with serve_script(HELLO, port=port) as back:
                await until(lambda: upstream.replicas[0].up)
                for number in range(4):
                    await upstream.answer(ask(), CallContext(f"new-{number}"))
                assert back.requests == 2
        finally:
            await upstream.close()


async def test_a_transient_failure_is_not_a_difference():
    async with serve_script(HELLO) as one, serve_script(HELLO) as two:
        two.faults.append(500)
        assert await probe_policy([one.url, two.url]) is not None
        two.faults.extend([500] * 2)
        with pytest.raises(PolicyError, match=f"{two.url} answered 500"):
            await probe_policy([one.url, two.url])


async def test_replicas_are_probed_concurrently():
    """The time for a hanging replica does not add up over many."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serve_script(HELLO)) for _ in range(3)]
        for server in servers:
            server.faults.append("hang")
        looking = asyncio.create_task(probe_policy([server.url for server in servers]))
        await until(lambda: all(server.in_flight for server in servers))
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def test_known_capabilities_are_not_probed_again():
    async with serve_script(HELLO) as one, serve_script(HELLO) as two:
        known = await probe_policy([one.url, two.url])
        before = (one.requests, two.requests)
        upstream = await make_upstream([one.url, two.url], capabilities=known)
        await upstream.close()
        assert (one.requests, two.requests) == before


async def test_an_upstream_is_created_from_a_script(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text('[[turns]]\nrun = "ls"\n')
    upstream = await make_upstream([f"scripted:{path}"])
    answer = await upstream.answer(ask(user("hi"), tools=[BASH]), CALL)
    assert answer.message.calls and upstream.replicas[0].up
    await upstream.close()


async def test_an_upstream_that_is_down_is_not_created():
    async with serve_script(Script(turns=(Turn(text="x"),))) as server:
        pass
    with pytest.raises(PolicyError, match="cannot be reached"):
        await make_upstream([server.url])
    with pytest.raises(UsageError):
        await make_upstream([])
    with pytest.raises(UsageError):
        await make_upstream(["scripted:a", server.url])


async def test_several_models_require_a_choice():
    async with serve_script(HELLO, ServerFeatures(other_models=("adapter",))) as server:
        seen = await probe(server.url)
        assert seen.problem.endswith("serves scripted, adapter; name one with --model")
        assert not (await probe(server.url, "scripted")).problem
