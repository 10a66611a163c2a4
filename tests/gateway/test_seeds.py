"""What answers are sampled with: the same for a trial that is run again, and what is asked for
unless the model is to be sampled as it is."""

import json
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.upstreams.make import make_upstream

ANSWER = {"message": {"role": "assistant", "content": "so"}, "finish_reason": "stop", "index": 0}


class Policy:
    """A server that keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def __aenter__(self) -> "Policy":
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(json.loads(await request.read()))
        return web.json_response({"id": "x", "model": "m", "choices": [ANSWER]})


async def asked_of(
    policy: Policy, folder: Path, seed: str, *requests: dict[str, Any], plain: bool = False
) -> list[dict[str, Any]]:
    """What the server is asked, for the requests of one session."""
    upstream = await make_upstream((policy.url,), model="m", plain=plain)
    policy.asked.clear()
    try:
        async with Gateway(upstream) as gateway, aiohttp.ClientSession() as http:
            session = await gateway.open(folder, blobs=folder / "blobs", seed=seed)
            access = session.access(gateway.port)
            for number, more in enumerate(requests):
                body = {"model": "m", "messages": [{"role": "user", "content": f"{number}"}]}
                headers = {"Authorization": f"Bearer {access.key}"}
                url = f"{access.openai}/chat/completions"
                async with http.post(url, json=body | more, headers=headers) as response:
                    assert response.status == 200, await response.text()
            await session.end()
    finally:
        await upstream.close()
    return list(policy.asked)


async def seeds_of(policy: Policy, folder: Path, seed: str, *requests: dict[str, Any]) -> list[Any]:
    return [asked.get("seed") for asked in await asked_of(policy, folder, seed, *requests)]


async def test_sessions_of_one_seed_ask_with_the_same_and_each_request_with_another(tmp_path: Path):
    async with Policy() as policy:
        first = await seeds_of(policy, tmp_path / "1", "0 fix-add 3/1", {}, {})
        again = await seeds_of(policy, tmp_path / "2", "0 fix-add 3/1", {}, {})
        other = await seeds_of(policy, tmp_path / "3", "0 fix-add 3/2", {}, {})
    assert first == again
    assert len({*first, *other}) == 4
    assert all(0 <= seed < 1 << 31 for seed in first + other)


async def test_without_a_seed_none_is_sent_and_an_agents_own_comes_before(tmp_path: Path):
    async with Policy() as policy:
        assert await seeds_of(policy, tmp_path / "1", "", {}) == [None]
        assert await seeds_of(policy, tmp_path / "2", "0 a", {"seed": 7}) == [7]


WARM = {"temperature": 0.2, "top_p": 0.9, "logit_bias": {"7": 5}, "stop": ["x"], "max_tokens": 9}


async def test_sampled_as_it_is_a_model_is_asked_with_no_temperature_of_an_agent(tmp_path: Path):
    async with Policy() as policy:
        (asked,) = await asked_of(policy, tmp_path / "1", "", WARM, plain=True)
        (as_it_came,) = await asked_of(policy, tmp_path / "2", "", WARM)
    assert {name: asked[name] for name in ("temperature", "top_p", "top_k")} == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
    }
    assert asked["repetition_penalty"] == 1.0
    assert "logit_bias" not in asked
    assert (asked["stop"], asked["max_tokens"]) == (["x"], 9)
    assert {name: as_it_came[name] for name in WARM} == WARM
    assert "top_k" not in as_it_came
