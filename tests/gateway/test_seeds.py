"""What answers are sampled with: the same for a trial that is run again."""

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
        self.seeds: list[Any] = []

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
        self.seeds.append(json.loads(await request.read()).get("seed"))
        return web.json_response({"id": "x", "model": "m", "choices": [ANSWER]})


async def seeds_of(policy: Policy, folder: Path, seed: str, *requests: dict[str, Any]) -> list[Any]:
    """The seeds that the server is asked with, for the requests of one session."""
    upstream = await make_upstream((policy.url,), model="m")
    policy.seeds.clear()
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
    return list(policy.seeds)


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
