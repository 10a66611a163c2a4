"""Remote servers that fail, hang, restart or report other weights."""

import asyncio
from pathlib import Path
from typing import Any

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
from weight_stand_in import Fault, SGLangStandIn, StandIn, Token, VLLMStandIn, serving

from plimsoll.core.errors import PolicyError
from plimsoll.testing.waiting import until
from plimsoll.training.policies.remote import openai_policy
from plimsoll.training.policies.remote.openai_policy import OpenAIPolicy

ROUTES = {
    "vllm": (
        "/pause",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/weight_info",
    ),
    "sglang": ("/pause_generation", "/flush_cache", "/update_weights_from_disk", "/model_info"),
}
every_route = pytest.mark.parametrize(
    ("kind", "route"), [(kind, route) for kind, routes in ROUTES.items() for route in routes]
)
REPORTS = ("/weight_info", "/model_info")
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_policy, "RETRY_SECONDS", 0.05)


def break_at(server: StandIn, route: str, fault: Fault) -> None:
    """Add a fault. Routes that report weights fail at the second call, after the change."""
    server.faults[route].extend(("none", fault) if route in REPORTS else (fault,))


@every_route
async def test_a_failing_replica_is_named_and_none_stays_paused(
    kind: Any, route: str, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        bad = servers[1]
        break_at(bad, route, 500)
        with pytest.raises(PolicyError) as raised:
            await policy.publish(weights_of(base, 2), V(2))
        message = str(raised.value)
        assert f"version 2 is not served by every replica: the policy at {bad.url}" in message
        assert "answered 500: out of order" in message
        assert f"Replicas that have it: {servers[0].url}, {servers[2].url}." in message
        assert str(tmp_path) in message
        assert healthy(servers)
        await policy.publish(weights_of(base, 3), V(3))
        for server in servers:
            assert await ask(server) == [Token(3, 3)] * 4


@every_route
async def test_a_hanging_replica_times_out(
    kind: Any, route: str, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind, update_seconds=1.0) as policy:
        break_at(servers[1], route, "hang")
        with pytest.raises(PolicyError, match=rf"{servers[1].url} did not load.*1 s.*{route}"):
            await policy.publish(weights_of(base, 1), V(1))
        assert healthy(servers)
        policy._timeout = 60.0
        await policy.publish(weights_of(base, 1), V(1))
        assert await ask(servers[1]) == [Token(1, 1)] * 4


@every_route
async def test_a_broken_connection_is_retried(
    kind: Any, route: str, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        break_at(servers[1], route, "drop")
        await policy.publish(weights_of(base, 1), V(1))
        assert [await ask(server) for server in servers] == [[Token(1, 1)] * 4] * 3
        assert healthy(servers)


@every_route
async def test_a_cancelled_publish_leaves_no_server_paused(
    kind: Any, route: str, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        for server in servers:
            break_at(server, route, "hang")
        publishing = asyncio.create_task(policy.publish(weights_of(base, 1), V(1)))
        await until(lambda: not any(server.faults[route] for server in servers))
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert healthy(servers)
        await policy.publish(weights_of(base, 2), V(2))
        assert [await ask(server) for server in servers] == [[Token(2, 2)] * 4] * 3


async def test_a_cancelled_resume_still_completes(base: Path, tmp_path: Path) -> None:
    servers = replicas("vllm")
    async with running_policy(servers, tmp_path, update_seconds=1.0) as policy:
        for server in servers:
            server.faults["/collective_rpc"].append("hang")
            server.delays["/resume"] = 0.3
        publishing = asyncio.create_task(policy.publish(weights_of(base, 1), V(1)))
        await until(lambda: all("/resume" in server.calls for server in servers))
        assert not healthy(servers)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert healthy(servers)


@pytest.mark.parametrize(
    ("kind", "route"), [("vllm", "/resume"), ("sglang", "/continue_generation")]
)
async def test_a_lost_resume_request_is_retried(
    kind: Any, route: str, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind, 1)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        servers[0].faults[route].append("drop")
        await policy.publish(weights_of(base, 1), V(1))
        assert healthy(servers)
        servers[0].faults[route].append(500)
        with pytest.raises(PolicyError, match=r"out of order; it may still be paused"):
            await policy.publish(weights_of(base, 2), V(2))


@both
async def test_a_replica_that_reports_another_version_fails_the_publish(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        servers[2].reported_version = "another"
        with pytest.raises(PolicyError, match=rf"{servers[2].url} was given .* serves another"):
            await policy.publish(weights_of(base, 1), V(1))
        assert healthy(servers)


@both
async def test_publish_returns_only_after_the_slowest_replica(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        servers[1].loads.clear()
        publishing = asyncio.create_task(policy.publish(weights_of(base, 1), V(1)))
        await until(lambda: servers[0].number == 1 and not servers[0].paused)
        assert await ask(servers[0]) == [Token(1, 1)] * 4, "other replicas do not wait for it"
        assert not publishing.done()
        assert servers[1].number == 0
        servers[1].loads.set()
        await publishing
        assert servers[1].number == 1


@both
async def test_a_replica_that_restarts_in_time_is_awaited(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        await servers[1].stop()
        publishing = asyncio.create_task(policy.publish(weights_of(base, 1), V(1)))
        await until(lambda: servers[0].number == 1)
        await servers[1].start()
        await publishing
        assert await ask(servers[1]) == [Token(1, 1)] * 4


async def test_a_replica_that_stays_down_is_named(base: Path, tmp_path: Path) -> None:
    servers = replicas("vllm")
    async with running_policy(servers, tmp_path, update_seconds=1.0) as policy:
        await servers[1].stop()
        with pytest.raises(PolicyError, match=rf"{servers[1].url} cannot be reached"):
            await policy.publish(weights_of(base, 1), V(1))


async def test_after_a_failure_every_replica_loads_the_weights_again(
    base: Path, tmp_path: Path
) -> None:
    servers = replicas("vllm", 2)
    async with running_policy(servers, tmp_path) as policy:
        servers[1].faults["/update_weight_version"].append(500)
        with pytest.raises(PolicyError, match="out of order"):
            await policy.publish(None, V(0))
        await policy.publish(None, V(0))
        servers[1].faults["/pause"].append(500)
        with pytest.raises(PolicyError, match="out of order"):
            await policy.publish(weights_of(base, 1), V(1))
        with pytest.raises(PolicyError, match="or publish weights"):
            await policy.publish(None, V(1))
        assert await policy.check() == ()
        await policy.publish(weights_of(base, 1), V(1))
        # The replica loads the new weights, and keeps the version of the old ones.
        servers[1].faults["/update_weight_version"].append(500)
        with pytest.raises(PolicyError, match="out of order"):
            await policy.publish(weights_of(base, 2), V(2))
        await policy.publish(None, V(1))
        assert [server.number for server in servers] == [1, 1]


@both
async def test_a_cancelled_drain_admits_new_requests(kind: Any, base: Path, tmp_path: Path) -> None:
    servers = replicas(kind, 1)
    async with running_policy(servers, tmp_path, server=kind, updating="drain") as policy:
        asked = await ask_slowly(servers, 1)
        publishing = asyncio.create_task(policy.publish(weights_of(base, 1), V(1)))
        await until(lambda: not servers[0].admits.is_set())
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        speed_up(servers)
        assert len(await ask(servers[0])) == 4
        assert await asked[0] == [Token(0, 0)] * 60


@both
async def test_weights_of_another_run_are_not_mistaken_for_version_0(
    kind: Any, base: Path, tmp_path: Path
) -> None:
    servers = replicas(kind, 1)
    async with serving(*servers):
        urls = [servers[0].url]
        async with OpenAIPolicy(urls, tmp_path / "a", server=kind) as policy:
            await policy.publish(None, V(0))
        async with OpenAIPolicy(urls, tmp_path / "a", server=kind) as policy:
            await policy.publish(None, V(0))
            await policy.publish(weights_of(base, 1), V(1))
        async with OpenAIPolicy(urls, tmp_path / "b", server=kind) as policy:
            with pytest.raises(PolicyError, match=r"\(0\.1-.*restart it"):
                await policy.publish(None, V(0))
            await policy.publish(weights_of(base, 0), V(0))


@both
async def test_a_folder_that_servers_cannot_read_is_reported(
    kind: Any, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = replicas(kind, 1)
    async with running_policy(servers, tmp_path, server=kind) as policy:

        def fail(path: str) -> int:
            raise FileNotFoundError(f"no such folder: {path}")

        monkeypatch.setattr("weight_stand_in.read_number", fail)
        with pytest.raises(PolicyError, match=r"no such folder.*each of them reads"):
            await policy.publish(weights_of(base, 1), V(1))
        assert healthy(servers)


async def test_redirects_are_not_followed(base: Path, tmp_path: Path) -> None:
    servers = replicas("vllm", 1)
    async with running_policy(servers, tmp_path) as policy:
        servers[0].faults["/collective_rpc"].append(302)
        with pytest.raises(PolicyError, match="answered 302"):
            await policy.publish(weights_of(base, 1), V(1))
        assert "/health" not in servers[0].calls


async def test_an_endless_answer_is_not_read_to_its_end(tmp_path: Path) -> None:
    server = VLLMStandIn()
    server.reported_version = "x" * (1 << 21)
    with pytest.raises(PolicyError, match="longer than 1048576 bytes"):
        async with running_policy([server], tmp_path):
            pass


async def test_an_sglang_that_keeps_its_cache_is_reported_with_the_drain_remedy(
    base: Path, tmp_path: Path
) -> None:
    server = SGLangStandIn()
    server.flushes_retracted = False
    async with running_policy([server], tmp_path, server="sglang") as policy:
        asked = await ask_slowly([server], 1)
        with pytest.raises(PolicyError, match=r'\[training\] updating = "drain"'):
            await policy.publish(weights_of(base, 1), V(1))
        assert healthy([server])
        speed_up([server])
        assert await asked[0] == [Token(0, 0)] * 60
    async with running_policy([server], tmp_path, server="sglang", updating="drain") as policy:
        asked = await ask_slowly([server], 1)
        publishing = asyncio.create_task(policy.publish(weights_of(base, 1), V(1)))
        await until(lambda: not server.admits.is_set())
        speed_up([server])
        await publishing
        assert await asked[0] == [Token(0, 0)] * 60
        assert await ask(server) == [Token(1, 1)] * 4
        assert healthy([server])


@both
async def test_a_version_that_some_replicas_missed_is_no_false_alarm(
    kind: Any, base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servers = replicas(kind)
    async with running_policy(servers, tmp_path, server=kind) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        await servers[1].stop()
        policy._timeout = 1.0
        with pytest.raises(PolicyError, match="version 2 is not served"):
            await policy.publish(None, V(2))
        for server in servers:
            server.calls.clear()
        assert await policy.check() == ()
        assert "sending the weights again" not in caplog.text
        assert {call for server in servers for call in server.calls} <= set(REPORTS)
        # A restarted replica is detected nevertheless.
        policy._timeout = 60.0
        await servers[1].start()
        assert await policy.check() == (servers[1].url,)
        await policy.publish(None, V(2))
        assert [await ask(server) for server in servers] == [[Token(1, 1)] * 4] * 3


async def test_a_rejected_first_version_names_no_run_to_resume(base: Path, tmp_path: Path) -> None:
    servers = replicas("vllm", 1)
    async with running_policy(servers, tmp_path) as policy:
        servers[0].faults["/pause"].append(500)
        with pytest.raises(PolicyError, match=r"Nothing was started\. Check these .* try again"):
            await policy.publish(weights_of(base, 1), V(0))
