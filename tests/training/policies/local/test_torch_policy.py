"""The policy served by the trainer, over HTTP and through the gateway."""

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_parts import ServedSession, serving
from safetensors.torch import load_file
from tiny_model import CHAT, CHAT_WITH_TOOLS, END, make_model

from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.core.versions import Version
from plimsoll.gateway.upstreams.factory import KEY_VARIABLE, make_upstream
from plimsoll.gateway.upstreams.probe import probe
from plimsoll.testing.waiting import until
from plimsoll.training.policies.local.torch_policy import TorchPolicy
from plimsoll.training.policies.protocol import Weights

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]


class Client:
    """Sends requests to a policy as the gateway does."""

    def __init__(self, policy: TorchPolicy, http: aiohttp.ClientSession) -> None:
        self._policy = policy
        self.http = http

    def post(self, path: str = "/chat/completions", **fields: Any) -> Any:
        body = {"messages": HELLO, "return_token_ids": True, "logprobs": True, **fields}
        return self.http.post(f"{self._policy.urls[0]}{path}", json=body)

    async def ask(self, **fields: Any) -> tuple[int, Any]:
        async with self.post(**fields) as response:
            return response.status, await response.json()

    async def choice(self, **fields: Any) -> dict[str, Any]:
        status, body = await self.ask(**fields)
        assert status == 200, body
        return body["choices"][0]

    async def events(self, **fields: Any) -> list[dict[str, Any]]:
        async with self.post(stream=True, **fields) as response:
            lines = (await response.read()).decode().splitlines()
        data = [line.removeprefix("data: ") for line in lines if line]
        assert data.pop() == "[DONE]"
        return [json.loads(each) for each in data]


@asynccontextmanager
async def running_policy(folder: Path, **options: Any) -> AsyncIterator[tuple[TorchPolicy, Client]]:
    async with TorchPolicy(folder, device="cpu", **options) as policy:
        headers = {"Authorization": f"Bearer {policy.key}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            yield policy, Client(policy, http)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small", template=CHAT_WITH_TOOLS)


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[Client]:
    async with running_policy(folder) as (_, client):
        yield client


async def test_a_probe_finds_all_capabilities_for_training(folder):
    async with running_policy(folder) as (policy, _):
        found = await probe(policy.urls[0], key=policy.key)
    assert found.trains and found.streams_all and found.tools and found.count
    assert (found.model, found.context) == ("small", 2048)


async def test_tools_are_refused_if_the_template_has_none(tmp_path):
    async with running_policy(make_model(tmp_path, template=CHAT)) as (policy, client):
        status, body = await client.ask(tools=TOOLS)
        found = await probe(policy.urls[0], key=policy.key)
    assert (status, body["error"]["message"]) == (
        400,
        "this model's chat template does not support tools: send the request without them",
    )
    assert found.trains and not found.tools


@asynccontextmanager
async def behind_a_gateway(policy: TorchPolicy, folder: Path) -> AsyncIterator[ServedSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_VARIABLE, policy.key)
        upstream = await make_upstream(policy.urls)
    try:
        async with serving(upstream, folder) as session:
            yield session
    finally:
        await upstream.close()


async def converse(session: ServedSession, turns: int, **fields: Any) -> None:
    messages: list[dict[str, Any]] = [*HELLO]
    for turn in range(turns):
        status, body = await session.ask(messages=messages, **fields)
        assert status == 200, body
        answer = json.loads(body)["choices"][0]["message"]
        messages += [answer, {"role": "user", "content": f"and now {turn}?"}]


@pytest.mark.parametrize("alphabet", ["ascii", "bytes"])
async def test_a_conversation_is_one_sample_for_any_answers(tmp_path, alphabet):
    model = make_model(tmp_path / "model", alphabet=alphabet)
    async with TorchPolicy(model, device="cpu") as policy:
        await policy.publish(None, Version(1, 4))
        async with behind_a_gateway(policy, tmp_path) as session:
            await converse(session, 5, max_tokens=30)
            trajectory = await session.read()
    assert [each.branch for each in trajectory.exchanges] == ["start", *["extends"] * 4]
    (sample,) = trajectory.samples()
    versions = [version for version in sample.versions if version is not None]
    assert set(versions) == {Version(1, 4)}
    assert (
        len(versions)
        == sum(sample.mask)
        == sum(each.answer_tokens for each in trajectory.exchanges)
    )


async def test_answers_end_with_the_sampled_end_token(folder):
    ends = 0
    async with running_policy(folder) as (_, client):
        for seed in range(12):
            choice = await client.choice(seed=seed, max_tokens=200)
            if choice["finish_reason"] == "stop":
                ends += 1
                assert choice["logprobs"]["content"][-1]["token"] == END
                assert not (choice["message"]["content"] or "").endswith(END)
    assert ends


@pytest.mark.parametrize("stream", [False, True])
async def test_the_gateway_records_the_versions_of_the_server(folder, tmp_path, stream):
    weights = Weights(load_file(folder / "model.safetensors"), folder)
    async with (
        TorchPolicy(folder, device="cpu") as policy,
        behind_a_gateway(policy, tmp_path) as session,
    ):
        number = 0
        for batch in range(5):
            seeds = range(8 * batch, 8 * batch + 8)
            asked = [session.asking(max_tokens=300, stream=stream, seed=seed) for seed in seeds]
            while not all(each.done() for each in asked):
                number += 1
                await policy.publish(weights, Version(0, number))
                await asyncio.sleep(0.001)
            assert {(await each)[0] for each in asked} == {200}
        trajectory = await session.read()
    runs = 0
    for exchange in trajectory.exchanges:
        assert exchange.untrainable == ""
        assert exchange.tokens is not None
        versions = [version for version, _ in exchange.tokens.versions]
        assert versions == sorted(set(versions))
        assert exchange.version <= versions[0]
        runs += len(versions)
    assert runs > len(trajectory.exchanges) == 40


async def test_a_stream_has_the_content_of_a_whole_answer(tmp_path):
    async with running_policy(make_model(tmp_path, alphabet="bytes")) as (_, client):
        for seed in range(5):
            whole = await client.choice(seed=seed, max_tokens=120)
            events = await client.events(seed=seed, max_tokens=120)
            pieces = [event["choices"][0] for event in events]
            text = "".join(piece["delta"].get("content", "") for piece in pieces)
            assert text == (whole["message"]["content"] or "")
            ids = [token for piece in pieces for token in piece.get("token_ids", ())]
            assert ids == whole["token_ids"]
            assert pieces[-1]["finish_reason"] == whole["finish_reason"]


async def test_an_answer_ends_before_a_stop_text(client):
    free = (await client.choice(seed=1, max_tokens=40))["message"]["content"]
    stop = free[10:12]
    for stream in (False, True):
        fields = {"seed": 1, "max_tokens": 40, "stop": [stop, "never said"]}
        if stream:
            pieces = [event["choices"][0] for event in await client.events(**fields)]
            text = "".join(piece["delta"].get("content", "") for piece in pieces)
            finish, ids = pieces[-1]["finish_reason"], pieces
        else:
            choice = await client.choice(**fields)
            text, finish, ids = choice["message"]["content"], choice["finish_reason"], [choice]
        assert (text, finish) == (free[: free.index(stop)], "stop")
        versions = [run for each in ids for run in each.get("token_versions", ())]
        tokens = [token for each in ids for token in each.get("token_ids", ())]
        assert sum(count for _, count in versions) == len(tokens) == len(text) + len(stop)


async def test_the_same_seed_gives_the_same_answer_and_no_seed_gives_others(client):
    seeded = [(await client.choice(seed=5, max_tokens=20))["token_ids"] for _ in range(2)]
    free = [(await client.choice(max_tokens=20))["token_ids"] for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert free[0] != free[1]


async def test_a_request_overrides_the_sampling_defaults_of_the_model(tmp_path):
    defaults = {"temperature": 0.01, "top_k": 1, "max_new_tokens": 7}
    async with running_policy(make_model(tmp_path, generation=defaults)) as (_, client):
        usual = [(await client.choice())["token_ids"] for _ in range(2)]
        free = await client.choice(temperature=1.0, top_k=0, max_tokens=9)
    assert usual[0] == usual[1]
    assert len(usual[0]) <= 7
    assert free["token_ids"] != usual[0]


async def test_a_prompt_that_fills_the_context_is_refused(client):
    long = [{"role": "user", "content": "x" * 2100}]
    for fields in ({"messages": long}, {"max_tokens": 2048}):
        status, body = await client.ask(**fields)
        assert status == 400
        assert "maximum context length is 2048 tokens" in body["error"]["message"]


async def test_an_answer_may_fill_the_rest_of_the_context(tmp_path):
    async with running_policy(make_model(tmp_path, context=64)) as (_, client):
        status, body = await client.ask(temperature=0)
    assert status == 200
    assert body["usage"]["total_tokens"] == 64 or body["choices"][0]["finish_reason"] == "stop"


async def test_a_role_that_the_template_rejects_is_a_bad_request(client):
    status, body = await client.ask(messages=[{"role": "robot", "content": "hi"}])
    assert (status, "no such role: robot" in body["error"]["message"]) == (400, True)


async def test_text_parts_are_accepted_and_images_are_refused(client):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    status, _ = await client.ask(messages=[{"role": "user", "content": parts}], max_tokens=1)
    assert status == 200
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    status, body = await client.ask(messages=[{"role": "user", "content": image}])
    assert (status, "accepts text only" in body["error"]["message"]) == (400, True)


async def test_unknown_token_ids_are_refused(tmp_path):
    model = make_model(tmp_path / "model")
    other = make_model(tmp_path / "other", alphabet="bytes")
    shutil.copy(other / "tokenizer.json", model / "tokenizer.json")
    async with running_policy(model) as (_, client):
        status, body = await client.ask()
    assert status == 400
    assert "the tokenizer gives token 258" in body["error"]["message"]
    assert "the model has only tokens below 103" in body["error"]["message"]


async def test_weights_of_another_model_are_refused_and_change_nothing(folder):
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    wrong = {
        "up_proj.weight is missing": {key: value for key, value in tensors.items() if key != name},
        "the model has no model.extra": tensors | {"model.extra": tensors[name]},
        "has the shape": tensors | {name: tensors[name][:1]},
    }
    async with running_policy(folder) as (policy, client):
        before = await client.choice(seed=1, max_tokens=9)
        for reason, weights in wrong.items():
            with pytest.raises(PolicyError, match=reason):
                await policy.publish(Weights(weights, folder), Version(0, 1))
        after = await client.choice(seed=1, max_tokens=9)
    assert (after["token_ids"], after["token_versions"]) == (
        before["token_ids"],
        before["token_versions"],
    )


async def test_a_disconnected_client_frees_its_slot(folder):
    async with running_policy(folder, max_batch=1) as (policy, client):
        passes: list[int] = []
        go_on = threading.Event()

        def block(*_: object) -> None:
            passes.append(len(passes))
            assert go_on.wait(60)

        generator = policy._generator
        generator._batch._model.register_forward_pre_hook(block)
        asking = asyncio.create_task(client.ask(max_tokens=1900, temperature=2))
        await until(lambda: passes)
        asking.cancel()
        await until(lambda: not generator._listeners)
        go_on.set()
        found = await client.choice(max_tokens=3)
    assert len(found["token_ids"]) <= 3
    assert len(passes) < 10, "the answer of a disconnected client was generated"


async def test_requests_without_the_key_are_refused(folder):
    async with running_policy(folder) as (policy, _), aiohttp.ClientSession() as http:
        post = http.post(f"{policy.urls[0]}/chat/completions", json={"messages": HELLO})
        async with post as response:
            assert response.status == 401


async def test_closing_the_policy_ends_requests_in_flight(folder):
    async with running_policy(folder) as (policy, client):
        asked = [asyncio.create_task(client.ask(max_tokens=1900, seed=n)) for n in range(16)]
        await asyncio.sleep(0.05)
        await policy.__aexit__(None, None, None)
        with pytest.raises(PolicyError, match="not being served"):
            await policy.publish(None, Version(0, 1))
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*asked, return_exceptions=True)
    assert any(isinstance(end, aiohttp.ClientError) or end[0] == 500 for end in ends)


async def test_a_model_that_cannot_be_loaded_is_reported_at_the_start(tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        async with TorchPolicy(tmp_path / "none"):
            raise AssertionError


def test_workers_never_get_the_wildcard_address():
    for host in ("0.0.0.0", "::"):
        with pytest.raises(UsageError, match="not an address that workers"):
            TorchPolicy(Path("model"), host=host)
