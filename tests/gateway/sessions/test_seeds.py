"""Sampling fields: reproducible seeds, and the fields that reach a server in training."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_parts import ENDPOINTS, serving

from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.upstreams.factory import make_upstream
from plimsoll.gateway.upstreams.openai_server import NEUTRAL_SAMPLING
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy

ANSWER = {"message": {"role": "assistant", "content": "so"}, "finish_reason": "stop", "index": 0}


class Policy:
    """A server that records its requests."""

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
    policy: Policy,
    folder: Path,
    seed: str,
    *requests: dict[str, Any],
    plain: bool = False,
    path: str = "/v1/chat/completions",
) -> list[dict[str, Any]]:
    """The requests of one session, as the server gets them."""
    upstream = await make_upstream((policy.url,), model="m", plain=plain)
    policy.asked.clear()
    try:
        async with Gateway(upstream) as gateway, aiohttp.ClientSession() as http:
            session = await gateway.open(folder, blobs=folder / "blobs", seed=seed)
            access = session.access(gateway.port)
            for number, more in enumerate(requests):
                asking = {"messages": [{"role": "user", "content": f"{number}"}]}
                body = {"model": "m", **({"input": "x"} if "responses" in path else asking)}
                headers = {"Authorization": f"Bearer {access.key}"}
                url = f"{access.root}{path}"
                async with http.post(url, json=body | more, headers=headers) as response:
                    assert response.status == 200, await response.text()
            await session.end()
    finally:
        await upstream.close()
    return list(policy.asked)


async def seeds_of(policy: Policy, folder: Path, seed: str, *requests: dict[str, Any]) -> list[Any]:
    return [asked.get("seed") for asked in await asked_of(policy, folder, seed, *requests)]


async def test_sessions_of_one_seed_send_the_same_distinct_seeds(tmp_path: Path):
    async with Policy() as policy:
        first = await seeds_of(policy, tmp_path / "1", "0 fix-add 3/1", {}, {})
        again = await seeds_of(policy, tmp_path / "2", "0 fix-add 3/1", {}, {})
        other = await seeds_of(policy, tmp_path / "3", "0 fix-add 3/2", {}, {})
    assert first == again
    assert len({*first, *other}) == 4
    assert all(0 <= seed < 1 << 31 for seed in first + other)


async def test_without_a_seed_none_is_sent_and_an_agents_own_takes_precedence(tmp_path: Path):
    async with Policy() as policy:
        assert await seeds_of(policy, tmp_path / "1", "", {}) == [None]
        assert await seeds_of(policy, tmp_path / "2", "0 a", {"seed": 7}) == [7]


WARM = {"temperature": 0.2, "top_p": 0.9, "logit_bias": {"7": 5}, "stop": ["x"], "max_tokens": 9}


async def test_neutral_sampling_ignores_the_agents_temperature(tmp_path: Path):
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


STEERING = {
    "add_generation_prompt": False,
    "allowed_token_ids": [1, 2],
    "bad_words": ["x"],
    "best_of": 4,
    "cache_salt": "x",
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": False},
    "continue_final_message": True,
    "custom_params": {"a": 1},
    "custom_logit_processor": "x",
    "documents": [{"text": "x"}],
    "ebnf": "root ::= x",
    "echo": True,
    "enable_thinking": False,
    "guided_choice": ["a"],
    "guided_grammar": "x",
    "guided_json": {},
    "guided_regex": "x",
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "length_penalty": 2.0,
    "logit_bias": {"7": 5},
    "logits_processors": ["x"],
    "min_p": 0.3,
    "min_tokens": 5,
    "mm_processor_kwargs": {"a": 1},
    "priority": -100,
    "prompt_logprobs": 5,
    "regex": "x",
    "response_format": {"type": "json_object"},
    "seed": 7,
    "skip_special_tokens": False,
    "stop_token_ids": [3],
    "structured_outputs": {"regex": "x"},
    "temperature": 0.1,
    "tool_choice": "required",
    "truncate_prompt_tokens": 5,
    "use_beam_search": True,
    "user": "someone",
    "vllm_xargs": {"a": 1},
    "a_field_of_next_year": True,
}
"""Fields by which an agent could change the sampling, or the behaviour of the server."""
HARMLESS = {
    "stop": ["x"],
    "max_tokens": 9,
    "reasoning_effort": "low",
    "parallel_tool_calls": True,
    "top_logprobs": 2,
    "logprobs": True,
    "return_token_ids": True,
}
OF_THE_GATEWAY = {"model", "messages", "stream", *HARMLESS, *NEUTRAL_SAMPLING}


async def test_in_training_only_allowed_fields_reach_the_server(tmp_path: Path):
    async with Policy() as policy:
        (asked,) = await asked_of(policy, tmp_path / "1", "0 a", STEERING | HARMLESS, plain=True)
        (as_it_came,) = await asked_of(policy, tmp_path / "2", "", STEERING | HARMLESS)
    assert asked.keys() == OF_THE_GATEWAY | {"seed"}
    assert asked["seed"] != STEERING["seed"]  # the trial's own seed
    assert {name: asked[name] for name in HARMLESS} == HARMLESS
    assert asked["temperature"] == 1.0 and asked["min_p"] == 0.0
    assert {name: as_it_came[name] for name in STEERING} == STEERING


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_in_training_the_field_filter_holds_in_every_dialect(tmp_path: Path, path: str):
    forms: dict[str, Any] = {
        "/v1/responses": {
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}},
            "reasoning": {"effort": "low"},
        },
        "/v1/messages": {"max_tokens": 9, "output_config": {"format": FORMAT}, "thinking": None},
    }
    refused = {"response_format", "tool_choice"}  # by name, in training and in evaluation
    body = {name: value for name, value in STEERING.items() if name not in refused}
    async with Policy() as policy:
        (asked,) = await asked_of(policy, tmp_path, "", body | forms[path], plain=True, path=path)
    assert asked.keys() <= OF_THE_GATEWAY


FORMAT = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_in_training_tools_are_called_without_a_grammar(tmp_path: Path, choice: str):
    function = {"name": "f", "strict": True, "parameters": {"properties": {"strict": True}}}
    tools = [{"type": "function", "function": function}]
    named = {"type": "function", "function": {"name": "f"}}
    free, forced = (
        {"tools": tools, "tool_choice": chosen, "top_k": number}
        for number, chosen in enumerate((choice, named))
    )
    async with Policy() as policy:
        first, second = await asked_of(policy, tmp_path / "1", "", free, forced, plain=True)
        (as_it_came,) = await asked_of(policy, tmp_path / "2", "", forced)
    assert first["tool_choice"] == choice
    assert "tool_choice" not in second
    sent = {"name": "f", "parameters": function["parameters"]}
    assert first["tools"] == second["tools"] == [{"type": "function", "function": sent}]
    assert (as_it_came["tools"], as_it_came["tool_choice"]) == (tools, named)


async def test_in_training_a_prefilled_answer_is_continued(tmp_path: Path):
    prefilled = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]
    more = {"max_tokens": 9, "messages": prefilled}
    async with Policy() as policy:
        for plain in (False, True):
            (asked,) = await asked_of(
                policy, tmp_path / str(plain), "", more, plain=plain, path="/v1/messages"
            )
            assert asked["continue_final_message"] is True
            assert asked["add_generation_prompt"] is False


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("name", ["kv_transfer_params", "bootstrap_host", "lora_path"])
async def test_fields_that_name_a_host_or_a_file_are_refused(tmp_path: Path, path: str, name: str):
    async with serving(ScriptedPolicy(lambda _: "fine"), tmp_path) as served:
        status, answer = await served.ask(path, **{name: {"remote_host": "169.254.169.254"}})
        assert status == 400, answer
        assert name in json.loads(answer)["error"]["message"]
        assert (await served.ask(path, 1, **{name: None}))[0] == 200
