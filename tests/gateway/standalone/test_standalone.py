"""The standalone gateway: the admin API, health and metrics."""

import asyncio
import gzip
import json
import re
import resource
import time
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from gateway_parts import HELLO, Stepped

from plimsoll.core.versions import Version
from plimsoll.gateway.http.server import Listen
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.standalone import session_records
from plimsoll.gateway.standalone import standalone as standalone_module
from plimsoll.gateway.standalone.standalone import StandaloneGateway
from plimsoll.gateway.upstreams.gate import Gate
from plimsoll.gateway.upstreams.replicas import ReplicaState
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.testing.waiting import until
from plimsoll.trajectories.trajectory_file import read_trajectory


@dataclass(slots=True)
class AdminClient:
    """A standalone gateway, and its admin."""

    standalone: StandaloneGateway
    client: aiohttp.ClientSession
    folder: Path

    async def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        url = f"http://127.0.0.1:{self.standalone.port}{path}"
        headers = {"Authorization": f"Bearer {key or self.standalone.admin_key}"}
        async with self.client.request(method, url, json=body, headers=headers) as reply:
            return reply.status, await reply.json()

    async def metrics(self) -> dict[str, float]:
        url = f"http://127.0.0.1:{self.standalone.port}/metrics"
        async with self.client.get(url) as reply:
            assert reply.status == 200
            lines = (await reply.text()).splitlines()
        figures = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        for name, _, _ in figures:
            assert re.fullmatch(r'plimsoll_gateway_\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})?', name)
        return {name.removeprefix("plimsoll_gateway_"): float(value) for name, _, value in figures}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[AdminClient]:
    upstream = Gate(ScriptedPolicy(lambda asked: f"heard {asked.last}"))
    async with (
        StandaloneGateway(upstream, tmp_path / "out", listen=Listen()) as standalone,
        aiohttp.ClientSession() as client,
    ):
        yield AdminClient(standalone, client, tmp_path / "out")


async def _ask(opened: dict[str, str]) -> str:
    async with openai.AsyncOpenAI(base_url=opened["openai"], api_key=opened["key"]) as client:
        answer = await client.chat.completions.create(model=opened["model"], messages=HELLO)
        return answer.choices[0].message.content or ""


async def test_a_session_is_opened_used_and_ended(admin: AdminClient):
    settings = {"limits": {"turns": 1}, "about": {"task": "t"}, "model": "mine"}
    status, opened = await admin.call("POST", "/sessions", settings)
    assert status == 201
    assert opened["model"] == "mine"
    assert opened["anthropic"] == opened["root"]
    assert await _ask(opened) == "heard hello"
    with pytest.raises(openai.BadRequestError, match="1 turns"):
        await _ask(opened)
    status, answer = await admin.call("GET", f"/sessions/{opened['id']}")
    assert status == 200
    assert (answer["exchanges"], answer["ending"]) == (1, "budget")
    assert "key" not in answer
    status, answer = await admin.call("DELETE", f"/sessions/{opened['id']}")
    assert status == 200
    trajectory = read_trajectory(Path(answer["trajectory"]))
    assert trajectory.opened.about == {"task": "t"}
    assert len(trajectory.exchanges) == 1
    assert Path(answer["trajectory"]).is_relative_to(admin.folder)
    with pytest.raises(openai.AuthenticationError, match="ended"):
        await _ask(opened)
    assert answer["trajectory"] == opened["trajectory"]
    assert opened["id"] in Path(opened["trajectory"]).parent.name
    for method in ("GET", "DELETE"):
        assert await admin.call(method, f"/sessions/{opened['id']}") == (200, answer)
    assert (answer["ended"], answer["closed"], answer["ending"]) == (True, True, "budget")


async def test_a_session_can_be_opened_without_a_body(admin: AdminClient):
    url = f"http://127.0.0.1:{admin.standalone.port}/sessions"
    headers = {"Authorization": f"Bearer {admin.standalone.admin_key}"}
    async with admin.client.post(url, headers=headers) as reply:
        assert reply.status == 201
        assert await _ask(await reply.json()) == "heard hello"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/sessions"),
        ("GET", "/sessions/x"),
        ("DELETE", "/sessions/x"),
        ("GET", "/policy"),
        ("POST", "/policy"),
    ],
)
async def test_admin_calls_need_the_admin_key(admin: AdminClient, method: str, path: str):
    _, opened = await admin.call("POST", "/sessions", {})
    for key in ("wrong", opened["key"], admin.standalone.admin_key[:-1]):
        assert (await admin.call(method, path, {}, key))[0] == 401
    root = f"/s/{opened['id']}/v1/models"
    assert (await admin.call("GET", root))[0] == 401  # the admin key does not open a session either


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"limits": {"turns": 0}},
        {"limits": {"turn": 1}},
        {"limits": {"seconds": -1}},
        {"limits": {"seconds": "1"}},
        {"about": {"task": 1}},
        {"unknown": 1},
    ],
)
async def test_an_invalid_session_request_is_refused(admin: AdminClient, body: Any):
    status, answer = await admin.call("POST", "/sessions", body)
    assert status == 400
    assert answer["error"]["message"]
    assert (await admin.metrics())["sessions_open"] == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/sessions", 405),
        ("POST", "/sessions/x", 404),
        ("GET", "/sessions/x/y", 404),
        ("GET", "/nothing", 404),
        ("POST", "/healthz", 405),
        ("DELETE", "/metrics", 405),
        ("DELETE", "/policy", 405),
        ("GET", "/policy/x", 404),
    ],
)
async def test_other_calls_are_refused(admin: AdminClient, method: str, path: str, status: int):
    assert (await admin.call(method, path))[0] == status


async def test_metrics_count_what_happens(admin: AdminClient):
    _, opened = await admin.call("POST", "/sessions", {})
    for _ in range(3):
        await _ask(opened)
    with pytest.raises(openai.AuthenticationError):
        await _ask({**opened, "key": "wrong"})
    figures = await admin.metrics()
    assert figures["sessions_open"] == figures["sessions_total"] == 1
    assert figures['requests_total{dialect="chat",outcome="ok"}'] == 3
    assert figures['requests_total{dialect="chat",outcome="unauthorized"}'] == 1
    assert figures['tokens_total{of="prompt"}'] > 0
    assert figures["request_seconds_count"] == 3
    assert figures['request_seconds_bucket{le="+Inf"}'] == 3
    assert figures["requests_in_flight"] == 0
    assert figures["internal_errors_total"] == 0
    assert figures["upstream_failures_total"] == 0
    assert figures["resident_bytes"] > 1e6


async def test_metrics_do_not_grow_with_sessions(admin: AdminClient):
    _, opened = await admin.call("POST", "/sessions", {})
    await _ask(opened)
    before = set(await admin.metrics())
    for _ in range(5):
        _, opened = await admin.call("POST", "/sessions", {})
        await _ask(opened)
    assert set(await admin.metrics()) == before


class Replicated(Stepped):
    """An upstream whose replicas are up or down as the test sets them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = [True, False]

    @property
    def replicas(self) -> list[ReplicaState]:
        return [ReplicaState(url=f"http://{n}", up=up) for n, up in enumerate(self.up)]


async def test_health_reflects_the_replicas_and_the_event_loop(tmp_path: Path):
    upstream = Replicated()
    async with (
        StandaloneGateway(Gate(upstream), tmp_path, listen=Listen()) as standalone,
        aiohttp.ClientSession() as client,
    ):
        admin = AdminClient(standalone, client, tmp_path)
        status, answer = await admin.call("GET", "/healthz")
        assert (status, answer["ok"]) == (200, True)
        assert [replica["up"] for replica in answer["replicas"]] == [True, False]
        assert (await admin.metrics())['replica_up{replica="1"}'] == 0
        upstream.up = [False, False]
        status, answer = await admin.call("GET", "/healthz")
        assert (status, answer["problem"]) == (503, "no replica of the policy is up")
        upstream.up = [True, True]
        standalone.gateway.metrics.last_maintenance = time.monotonic() - 60
        status, answer = await admin.call("GET", "/healthz")
        assert status == 503
        assert "lags" in answer["problem"]


async def test_health_reports_each_replica_with_these_keys(tmp_path: Path):
    async with (
        StandaloneGateway(Gate(Replicated()), tmp_path, listen=Listen()) as standalone,
        aiohttp.ClientSession() as client,
    ):
        _, answer = await AdminClient(standalone, client, tmp_path).call("GET", "/healthz")
    keys = ["url", "up", "in_flight", "answered", "failures", "cooled", "last_failure"]
    assert [list(replica) for replica in answer["replicas"]] == [keys, keys]


@pytest.mark.parametrize("key", ["", "wrong", "session"])
async def test_without_the_admin_key_health_names_no_server(tmp_path: Path, key: str):
    upstream = Replicated()
    async with (
        StandaloneGateway(Gate(upstream), tmp_path, listen=Listen()) as standalone,
        aiohttp.ClientSession() as client,
    ):
        admin = AdminClient(standalone, client, tmp_path)
        if key == "session":
            key = (await admin.call("POST", "/sessions"))[1]["key"]
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        root = f"http://127.0.0.1:{standalone.port}"
        for up, status in (([True, False], 200), ([False, False], 503)):
            upstream.up = up
            async with client.get(f"{root}/healthz", headers=headers) as reply:
                assert (reply.status, await reply.json()) == (status, {"ok": status == 200})
            async with client.get(f"{root}/metrics", headers=headers) as reply:
                assert "http://" not in await reply.text()


async def test_idle_sessions_are_ended(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(standalone_module, "SWEEP_SECONDS", 0.02)
    upstream = Gate(ScriptedPolicy(lambda _: "fine"))
    async with (
        StandaloneGateway(upstream, tmp_path, listen=Listen(), idle_seconds=0.1) as standalone,
        aiohttp.ClientSession() as client,
    ):
        admin = AdminClient(standalone, client, tmp_path)
        status, opened = await admin.call("POST", "/sessions", {})
        assert status == 201
        await until(lambda: len(standalone.gateway.sessions) == 0)
        await _all_are_complete(tmp_path, 1)
        status, answer = await admin.call("GET", f"/sessions/{opened['id']}")
        assert (status, answer["ended"], answer["closed"]) == (200, True, True)
        assert answer["trajectory"] == opened["trajectory"]
        assert read_trajectory(Path(answer["trajectory"])).opened.session == opened["id"]


async def test_an_ended_session_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(standalone_module, "SWEEP_SECONDS", 0.02)
    upstream = Gate(ScriptedPolicy(lambda _: "fine"))
    async with StandaloneGateway(
        upstream, tmp_path, listen=Listen(), idle_seconds=0.1
    ) as standalone:
        session = weakref.ref(await standalone._open(Limits(), {}, None))
        await until(lambda: len(standalone.gateway.sessions) == 0)
        await until(lambda: session() is None, 5)


async def test_only_the_latest_ended_sessions_are_remembered(admin: AdminClient, monkeypatch):
    monkeypatch.setattr(session_records, "MAX_ENDED", 2)
    ids = [(await admin.call("POST", "/sessions", {}))[1]["id"] for _ in range(4)]
    for id in ids[:3]:
        assert (await admin.call("DELETE", f"/sessions/{id}"))[0] == 200
    found = [(await admin.call("GET", f"/sessions/{id}"))[0] for id in ids]
    assert found == [404, 200, 200, 200]
    assert list(admin.standalone._records._paths) == ids[3:]


async def test_sessions_out_of_time_are_ended(admin: AdminClient):
    _, stays = await admin.call("POST", "/sessions", {})
    await admin.call("POST", "/sessions", {"limits": {"seconds": 0.1}})
    sessions = admin.standalone.gateway.sessions
    await until(lambda: [each.id for each in sessions] == [stays["id"]])
    await admin.call("DELETE", f"/sessions/{stays['id']}")
    await _all_are_complete(admin.folder, 2)


async def test_a_sessions_clock_stops_while_the_policy_is_paused(admin: AdminClient):
    await admin.call("POST", "/policy", {"paused": True})
    _, opened = await admin.call("POST", "/sessions", {"limits": {"seconds": 1.0}})
    asking = asyncio.create_task(_ask(opened))
    (session,) = admin.standalone.gateway.sessions
    await until(lambda: session.in_flight == 1)
    await asyncio.sleep(1.5)
    assert (session.out_of_time, session.silent_for) == (False, pytest.approx(0.0, abs=0.05))
    await admin.call("POST", "/policy", {"paused": False})
    assert await asking == "heard hello"
    await until(lambda: not list(admin.standalone.gateway.sessions))


async def _all_are_complete(folder: Path, number: int) -> None:
    """True once all trajectories are closed: a session disappears before its trajectory closes."""
    await until(lambda: len(list(folder.glob("*/trajectory.jsonl.zst"))) == number)
    paths = list(folder.glob("*/trajectory.jsonl.zst"))
    assert all(read_trajectory(path).complete for path in paths)
    assert not list(folder.glob("*/*.part"))


async def test_the_admin_key_is_not_stored(tmp_path: Path):
    made = StandaloneGateway(Gate(ScriptedPolicy(lambda _: "fine")), tmp_path, listen=Listen())
    assert made.admin_key not in repr(made) + repr(made._admin)
    assert made.admin_key != StandaloneGateway(Gate(Stepped()), tmp_path, listen=Listen()).admin_key


async def test_a_read_only_folder_is_reported_to_the_admin(admin: AdminClient):
    admin.folder.parent.mkdir(exist_ok=True)
    admin.folder.write_text("a file where the folder should be")
    status, answer = await admin.call("POST", "/sessions", {})
    assert status == 503
    assert "cannot create a trajectory" in answer["error"]["message"]
    assert (await admin.metrics())["internal_errors_total"] == 0


async def test_as_many_files_may_be_open_as_the_system_allows(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        async with StandaloneGateway(
            Gate(ScriptedPolicy(lambda _: "yes")), tmp_path, listen=Listen()
        ):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("body_bytes", 2**63 - 1),
        ("body_bytes", 2**80),
        ("concurrent", 2**40),
        ("turns", 2**70),
        ("tokens", 0),
        ("seconds", 1e300),
        ("seconds", -1),
    ],
)
async def test_an_excessive_limit_is_refused(admin: AdminClient, name: str, value: float):
    status, answer = await admin.call("POST", "/sessions", {"limits": {name: value}})
    assert status == 400
    assert "invalid body" in answer["error"]["message"]


async def test_the_largest_limits_are_accepted(admin: AdminClient):
    limits = {"body_bytes": 1 << 30, "concurrent": 4096, "turns": 10**15, "seconds": 1e9}
    status, opened = await admin.call("POST", "/sessions", {"limits": limits})
    assert status == 201
    headers = {"Authorization": f"Bearer {opened['key']}", "Content-Encoding": "gzip"}
    body = gzip.compress(json.dumps({"model": "m", "messages": HELLO}).encode())
    url = f"{opened['openai']}/chat/completions"
    async with admin.client.post(url, data=body, headers=headers) as reply:
        assert reply.status == 200


async def test_the_admin_pauses_the_policy_and_sets_its_version(admin: AdminClient):
    _, opened = await admin.call("POST", "/sessions", {})
    assert await _ask(opened) == "heard hello"
    status, answer = await admin.call("POST", "/policy", {"paused": True})
    assert (status, answer["paused"], answer["version"]) == (200, True, "0")
    asking = asyncio.create_task(_ask(opened))
    gate = admin.standalone._upstream
    await until(lambda: gate.held == 1)
    assert (await admin.call("GET", "/policy"))[1]["held"] == 1
    status, answer = await admin.call("POST", "/policy", {"paused": False, "version": "1:3"})
    assert (status, answer["paused"], answer["version"]) == (200, False, "1:3")
    assert await asking == "heard hello"
    _, ended = await admin.call("DELETE", f"/sessions/{opened['id']}")
    versions = [each.version for each in read_trajectory(Path(ended["trajectory"])).exchanges]
    assert versions == [Version(0, 0), Version(1, 3)]


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"paused": 1},
        {"paused": False, "version": 3},
        {"paused": False, "version": ""},
        {"paused": False, "version": "v3"},
        {"paused": False, "version": "9" * 20},
        {"paused": False, "version": "9" * 5000},
        {"paused": True, "version": "3"},
        {"pause": True},
    ],
)
async def test_an_invalid_policy_command_is_refused_and_changes_nothing(
    admin: AdminClient, body: Any
):
    status, answer = await admin.call("POST", "/policy", body)
    assert status == 400
    assert answer["error"]["message"]
    answer = (await admin.call("GET", "/policy"))[1]
    assert (answer["paused"], answer["version"]) == (False, "0")
