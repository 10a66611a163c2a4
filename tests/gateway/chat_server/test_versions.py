import json
from typing import Any

import pytest
from gateway_parts import serving
from letters import END, Letters, served

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.upstreams.answers import StreamReader, read_answer
from plimsoll.gateway.upstreams.factory import make_upstream
from plimsoll.gateway.upstreams.failures import UpstreamFailure

RUNS = ((Version(0, 3), 2), (Version(1, 4), 1))


@pytest.mark.parametrize("version", [FIRST_VERSION, Version(0, 12), Version(3, 0), Version(2, 40)])
def test_a_version_survives_a_round_trip(version):
    assert Version.parse(str(version)) == version


@pytest.mark.parametrize("text", ["", ":", "1:", ":1", "x", "-1", "1:2:3", "1.5", "1 2", "²"])
def test_an_invalid_version_is_refused(text):
    with pytest.raises(ValueError, match="is not a version"):
        Version.parse(text)


def whole(**choice: Any) -> bytes:
    fields = {"message": {"content": "abc"}, "finish_reason": "stop", "token_ids": [1, 2, 3]}
    return json.dumps({"choices": [{**fields, **choice}], "prompt_token_ids": [9]}).encode()


def test_versions_of_a_whole_answer_are_parsed():
    answer = read_answer("here", whole(token_versions=[["3", 2], ["1:4", 1]]))
    assert answer.tokens is not None and answer.tokens.versions == RUNS


@pytest.mark.parametrize("stamps", [None, []])
def test_an_answer_without_versions_has_none(stamps):
    answer = read_answer("here", whole(token_versions=stamps))
    assert answer.tokens is not None and answer.tokens.versions == ()


@pytest.mark.parametrize("stamps", [[["x", 1]], [["1", -1]], "1", [[1, 1]]])
def test_invalid_versions_make_the_answer_unusable(stamps):
    with pytest.raises(UpstreamFailure, match="cannot be used"):
        read_answer("here", whole(token_versions=stamps))
    piece = {"choices": [{"delta": {}, "token_ids": [1], "token_versions": stamps}]}
    with pytest.raises(UpstreamFailure, match="cannot be used"):
        StreamReader("here").read(json.dumps(piece).encode())


@pytest.mark.parametrize("stream", [False, True])
async def test_each_token_is_recorded_with_the_version_its_server_reports(tmp_path, stream):
    async with served(Letters("Hello, you.")) as client:
        upstream = await make_upstream([client.url])
        async with serving(upstream, tmp_path) as session:
            status, body = await session.ask(stream=stream)
            trajectory = await session.read()
        await upstream.close()
    assert status == 200
    assert stream or b"token_versions" not in body
    (exchange,) = trajectory.exchanges
    assert exchange.tokens is not None and not exchange.untrainable
    stamps = [(Version(0, number), 4) for number in range(3)]
    assert list(exchange.tokens.versions) == stamps
    (sample,) = trajectory.samples()
    assert list(sample.ids)[-12:] == [*b"Hello, you.", END]


async def test_versions_that_do_not_add_up_are_not_trained_on(tmp_path):
    class Careless(Letters):
        async def generate(self, *args: Any, **more: Any):
            async for piece in super().generate(*args, **more):
                yield type(piece)(
                    text=piece.text,
                    ids=piece.ids,
                    logprobs=piece.logprobs,
                    versions=[(FIRST_VERSION, 2)],
                    finish=piece.finish,
                )

    async with served(Careless()) as client:
        upstream = await make_upstream([client.url])
        async with serving(upstream, tmp_path) as session:
            await session.ask()
            trajectory = await session.read()
        await upstream.close()
    (exchange,) = trajectory.exchanges
    assert exchange.tokens is None
    assert "carry a version, but the answer has 7 ids" in exchange.untrainable
