"""The policy on remote servers: publication of weights and restarted replicas."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai_parts import (
    KINDS,
    V,
    ask,
    ask_slowly,
    healthy,
    replicas,
    running_policy,
    speed_up,
    weights_of,
)
from weight_stand_in import Token, VLLMStandIn, serving

from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.gateway.completions import NoHistory, Request
from plimsoll.gateway.upstreams.factory import make_upstream
from plimsoll.gateway.upstreams.protocol import CallContext
from plimsoll.testing.waiting import until
from plimsoll.training.policies.protocol import Policy
from plimsoll.training.policies.remote.openai_policy import OpenAIPolicy

both = pytest.mark.parametrize("kind", KINDS)


def test_the_openai_policy_implements_the_protocol(tmp_path: Path) -> None:
    policy: Policy = OpenAIPolicy(["http://127.0.0.1:1"], tmp_path, key="k", model="m")
    assert policy.urls == ("http://127.0.0.1:1/v1",)
    assert (policy.key, policy.model) == ("k", "m")


@both
async def test_tokens_after_a_publish_come_from_the_new_weights(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        await policy.publish(None, V(0))
        assert await ask(servers[0]) == [Token(0, 0)] * 4
        for number in (1, 2):
            await policy.publish(weights_of(base, number), V(number))
            for server in servers:
                assert await ask(server) == [Token(number, number)] * 4
        assert healthy(servers)


@both
async def test_interrupted_answers_continue_with_the_new_weights(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind, updating="interrupt") as policy:
        asked = await ask_slowly(servers, 3)
        await policy.publish(weights_of(base, 1), V(1))
        assert all(len(server.running) == 3 for server in servers)
        speed_up(servers)
        for tokens in await asyncio.gather(*asked):
            switch = tokens.index(Token(1, 1))
            assert tokens == [Token(0, 0)] * switch + [Token(1, 1)] * (60 - switch)
            assert switch > 0
        assert healthy(servers)


@both
async def test_drained_answers_finish_with_the_old_weights(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind, updating="drain") as policy:
        asked = await ask_slowly(servers, 3)
        publishing = asyncio.create_task(policy.publish(weights_of(base, 1), V(1)))
        await until(lambda: not any(server.admits.is_set() for server in servers))
        late = [asyncio.create_task(ask(server, "late")) for server in servers]
        speed_up(servers)
        await publishing
        assert await asyncio.gather(*asked) == [[Token(0, 0)] * 60] * 9
        assert await asyncio.gather(*late) == [[Token(1, 1)] * 4] * 3
        assert healthy(servers)


@both
@pytest.mark.parametrize("updating", ["interrupt", "drain"])
async def test_the_kv_cache_of_old_weights_is_not_used_with_new_ones(
    kind: Any, updating: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind, 1)
    async with running_policy(servers, tmp_path, server=kind, updating=updating) as policy:
        assert await ask(servers[0], "same") == [Token(0, 0)] * 4
        await policy.publish(weights_of(base, 1), V(1))
        assert await ask(servers[0], "same") == [Token(1, 1)] * 4


@both
async def test_without_new_weights_only_the_version_changes(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        before = {server.label for server in servers}
        for server in servers:
            server.loads.clear()
        await policy.publish(None, V(2))
        after = {server.label for server in servers}
        assert len(before) == len(after) == 1
        assert before != after
        assert await ask(servers[0]) == [Token(1, 1)] * 4


@both
async def test_a_server_left_paused_by_a_killed_trainer_is_resumed(
    kind: Any, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        for server in servers:
            server.admits.clear()
            server.steps.clear()
        await policy.publish(None, V(0))
        assert healthy(servers)


@both
async def test_a_restarted_replica_gets_the_current_weights(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        assert await policy.check() == ()
        await servers[1].restart()
        assert await ask(servers[1]) == [Token(0, 0)] * 4
        assert await policy.check() == (servers[1].url,)
        assert await ask(servers[1]) == [Token(1, 1)] * 4
        assert await policy.check() == ()
        await servers[2].stop()
        assert await policy.check() == (), "a stopped replica generates nothing"


@both
async def test_pauses_for_new_weights_are_announced(kind: Any, base: Path, tmp_path: Path) -> None:
    servers = replicas(kind)
    events: list[str] = []

    @contextmanager
    def pausing() -> Generator[None]:
        assert not any(server.paused for server in servers)
        written = len(list(tmp_path.glob("**/model.safetensors")))
        events.append(f"paused, {written} written")
        yield
        assert not any(server.paused for server in servers)
        events.append("on")

    async with running_policy(servers, tmp_path, server=kind) as policy:
        policy.pausing = pausing
        await policy.publish(weights_of(base, 1), V(1))
        assert events == ["paused, 1 written", "on"], "the weights are written before the pause"
        assert await policy.check() == ()
        assert len(events) == 2
        await servers[1].restart()
        await policy.check()
        assert len(events) == 4


async def test_the_gateway_records_tokens_of_the_new_weights(base: Path, tmp_path: Path) -> None:
    servers = replicas("vllm")
    async with running_policy(servers, tmp_path) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        upstream = await make_upstream(policy.urls, model=policy.model)
        request = Request(
            model="", history=NoHistory(), messages=msgspec.Raw(b'[{"role":"user","content":"?"}]')
        )
        try:
            asked = [upstream.answer(request, CallContext(f"s{index}")) for index in range(6)]
            answers = await asyncio.gather(*asked)
        finally:
            await upstream.close()
        assert {id for a in answers if a.tokens for id in a.tokens.answer} == {Token(1, 1).id}


async def test_restarted_replicas_are_detected_between_publishes(
    base: Path, tmp_path: Path
) -> None:
    servers = replicas("vllm")
    async with running_policy(servers, tmp_path, watch_seconds=0.05) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        await servers[1].restart()
        await until(lambda: servers[1].number == 1 and not servers[1].paused)


@both
async def test_a_restarted_replica_is_not_merely_renamed(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        await servers[1].restart()
        await policy.publish(None, V(2))
        assert [server.number for server in servers] == [1, 1, 1]


async def test_the_key_is_sent_with_every_request(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = replicas("vllm", 1)
    servers[0].key = "secret"
    monkeypatch.setenv("PLIMSOLL_POLICY_KEY", "secret")
    async with running_policy(servers, tmp_path) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        assert await ask(servers[0]) == [Token(1, 1)] * 4
    monkeypatch.setenv("PLIMSOLL_POLICY_KEY", "wrong")
    with pytest.raises(PolicyError, match=r"answered 401.*Check the key.*nothing was started"):
        async with running_policy(servers, tmp_path):
            pass


async def test_a_server_without_the_endpoints_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    server = VLLMStandIn()
    server.dev_mode = False
    with pytest.raises(PolicyError, match=r"has no /weight_info.*VLLM_SERVER_DEV_MODE=1"):
        async with running_policy([server], tmp_path):
            pass


async def test_an_unreachable_server_is_named_before_anything_starts(tmp_path: Path) -> None:
    stopped = VLLMStandIn()
    async with serving(stopped):
        pass
    with pytest.raises(PolicyError, match=f"{stopped.url} cannot be reached.*nothing was started"):
        async with OpenAIPolicy([stopped.url], tmp_path):
            pass


def test_at_least_one_server_is_required(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\[policy\] urls"):
        OpenAIPolicy([], tmp_path)
