"""`plimsoll gateway`: the standalone server, and the probe of an upstream."""

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import anthropic
import openai
import pytest

from plimsoll.gateway.upstreams.scripted.script import Rule, Script, Turn
from plimsoll.gateway.upstreams.scripted.server import ScriptedServer, ServerFeatures
from plimsoll.trajectories.trajectory_file import read_trajectory
from policy_agents import serve_in_thread

Plimsoll = Callable[..., CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]

SCRIPT = Script(
    turns=(Turn(text="I look.", run="ls"), Turn(text="There is a file.", submit=True)),
    rules=(Rule(when="go on", text="and on " * 12_000),),
)
BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


@dataclass
class RunningGateway:
    """A running `plimsoll gateway`."""

    process: subprocess.Popen[str]
    root: str
    key: str
    said: list[str]

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(self.root + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def session(self, body: object = None) -> dict[str, str]:
        status, said = self.call("POST", "/sessions", body or {})
        assert status == 201, said
        return json.loads(said)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serve_in_thread(SCRIPT) as server:
        yield server


@pytest.fixture
def gateway(start: Start, server: ScriptedServer) -> RunningGateway:
    process = start("gateway", "--upstream", server.url, "--port", "0", "--out", "kept")
    assert process.stdout is not None
    said = [process.stdout.readline().rstrip() for _ in range(5)]
    assert said[0].startswith("gateway "), process.communicate()[1]
    root = said[0].split()[1]
    key = next(line.split()[-1] for line in said if line.startswith("admin key"))
    return RunningGateway(process, root, key, said)


def test_the_gateway_prints_its_address_and_a_first_command(
    gateway: RunningGateway, server: ScriptedServer
):
    assert server.url in gateway.said[0]
    assert "kept" in gateway.said[1]
    assert f"curl -X POST {gateway.root}/sessions" in gateway.said[3]
    assert gateway.call("GET", "/healthz")[0] == 200
    assert "plimsoll_gateway_sessions_open 0" in gateway.call("GET", "/metrics")[1]


def test_admin_calls_need_their_key(gateway: RunningGateway):
    gateway.key = "wrong"
    assert gateway.call("POST", "/sessions", {})[0] == 401


def test_the_admin_key_can_come_from_the_environment(
    start: Start, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PLIMSOLL_ADMIN_KEY", "of-my-own")
    process = start("gateway", "--upstream", server.url, "--port", "0")
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(5)]
    running = RunningGateway(process, said[0].split()[1], "of-my-own", said)
    assert running.session()["key"]
    assert "of-my-own" not in "".join(said)


def openai_talk(session: dict[str, str], *, stream: bool) -> str:
    """Have a conversation with one tool call. Returns the last answer."""
    tools: Any = [{"type": "function", "function": {"name": "bash", "parameters": BASH}}]
    messages: Any = [{"role": "user", "content": "What is there?"}]
    with openai.OpenAI(base_url=session["openai"], api_key=session["key"]) as client:
        for _ in range(2):
            asked = {"model": "any", "messages": messages, "tools": tools}
            if stream:
                with client.chat.completions.stream(**asked) as events:
                    message = events.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**asked).choices[0].message
            if not message.tool_calls:
                return message.content or ""
            (call,) = message.tool_calls
            assert json.loads(call.function.arguments) == {"command": "ls"}  # type: ignore[union-attr]
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            result = {"role": "tool", "tool_call_id": call.id, "content": "a.txt"}
            messages.append(result)
    raise AssertionError("it goes on calling")


def anthropic_talk(session: dict[str, str], *, stream: bool) -> str:
    tools: Any = [{"name": "bash", "input_schema": BASH}]
    messages: Any = [{"role": "user", "content": "What is there?"}]
    with anthropic.Anthropic(base_url=session["anthropic"], api_key=session["key"]) as client:
        for _ in range(2):
            asked = {"model": "any", "max_tokens": 500, "messages": messages, "tools": tools}
            if stream:
                with client.messages.stream(**asked) as events:
                    message = events.get_final_message()
            else:
                message = client.messages.create(**asked)
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content if block.type == "text")
            (call,) = calls
            assert call.input == {"command": "ls"}
            messages.append({"role": "assistant", "content": message.content})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "a.txt"}
            messages.append({"role": "user", "content": [result]})
    raise AssertionError("it goes on calling")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("talk", [openai_talk, anthropic_talk], ids=["openai", "anthropic"])
def test_client_libraries_are_served_and_each_token_is_recorded(
    gateway: RunningGateway, plimsoll: Plimsoll, tmp_path: Path, talk, stream: bool
):
    session = gateway.session({"about": {"who": "me"}})
    assert talk(session, stream=stream) == "There is a file."
    status = json.loads(gateway.call("GET", f"/sessions/{session['id']}")[1])
    assert (status["exchanges"], status["in_flight"], status["failure"]) == (2, 0, "")
    ended = json.loads(gateway.call("DELETE", f"/sessions/{session['id']}")[1])
    trajectory = read_trajectory(tmp_path / ended["trajectory"])
    assert trajectory.complete
    assert trajectory.opened.about == {"who": "me"}
    assert [one.branch for one in trajectory.exchanges] == ["start", "extends"]
    assert not any(one.untrainable for one in trajectory.exchanges)
    assert json.loads(gateway.call("GET", f"/sessions/{session['id']}")[1]) == ended
    assert ended["trajectory"] == session["trajectory"]
    shown = plimsoll("show", str(Path(ended["trajectory"]).parent))
    assert shown.returncode == 0, shown.stderr
    assert "There is a file." in shown.stdout
    assert "who me" in shown.stdout


def test_limits_of_a_session_are_enforced(gateway: RunningGateway):
    session = gateway.session({"limits": {"turns": 1}})
    with pytest.raises(openai.BadRequestError, match="1 turns are used up"):
        openai_talk(session, stream=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_every_trajectory_and_exits_0(
    gateway: RunningGateway, tmp_path: Path, number: int
):
    for _ in range(2):
        openai_talk(gateway.session(), stream=False)
    code, err = gateway.stop(number)
    assert code == 0, err
    files = sorted((tmp_path / "kept").glob("*/trajectory.jsonl.zst*"))
    assert [file.name for file in files] == ["trajectory.jsonl.zst"] * 2
    assert all(read_trajectory(file).complete for file in files)


def test_keys_do_not_appear_in_logs(gateway: RunningGateway):
    session = gateway.session()
    openai_talk(session, stream=True)
    _, err = gateway.stop()
    assert session["key"] not in err
    assert gateway.key not in err


def test_a_taken_port_is_reported_in_one_line(plimsoll: Plimsoll, server: ScriptedServer):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = plimsoll("gateway", "--upstream", server.url, "--port", port)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "in use" in ended.stderr


def test_a_missing_upstream_is_reported_in_one_line(plimsoll: Plimsoll):
    ended = plimsoll("gateway")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--upstream URL" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


TEXT_ONLY = ServerFeatures(
    logprobs=False, token_ids=False, stream_ids=False, tools=False, count=False, strict=True
)
WITH_LOGPROBS = ServerFeatures(token_ids=False, stream_ids=False, strict=True)
EVALUATION = ["evaluation possible", "training   not possible"]


@pytest.mark.parametrize(
    ("offers", "lines", "trains"),
    [
        (
            TEXT_ONLY,
            ["text       yes", "tools      no", "logprobs   no", "token ids  no", *EVALUATION],
            False,
        ),
        (
            WITH_LOGPROBS,
            ["tools      yes", "logprobs   yes", "token ids  no", *EVALUATION],
            False,
        ),
        (
            ServerFeatures(stream_ids=False),
            ["streams    token ids are incomplete", "training   possible", "to change  nothing"],
            True,
        ),
        (
            ServerFeatures(),
            ["token ids  of prompts and answers", "streams    yes", "training   possible"],
            True,
        ),
    ],
    ids=["text", "logprobs", "no-ids-in-streams", "all"],
)
def test_a_probe_lists_the_capabilities_of_the_server_and_their_uses(
    plimsoll: Plimsoll, offers: ServerFeatures, lines: list[str], trains: bool
):
    with serve_in_thread(SCRIPT, offers) as server:
        ended = plimsoll("gateway", "probe", server.url)
        found = plimsoll("gateway", "probe", server.url, "--json")
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()
    for line in lines:
        assert any(one.startswith(line) for one in said), ended.stdout
    assert found.returncode == 0
    report = json.loads(found.stdout)
    assert (report["trains"], report["tools"]) == (trains, offers.tools)
    assert (report["model"], report["problem"]) == ("scripted", "")


def test_a_probe_of_an_unreachable_server_exits_1_with_the_reason(
    plimsoll: Plimsoll, dead_url: str
):
    ended = plimsoll("gateway", "probe", dead_url)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.splitlines() == [
        f"the policy at {dead_url} cannot be reached: Connection refused",
        "neither evaluation nor training is possible",
    ]
    found = plimsoll("gateway", "probe", dead_url, "--json")
    assert found.returncode == 1
    assert "Connection refused" in json.loads(found.stdout)["problem"]


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "stalls"])
def test_a_signal_ends_requests_in_flight_and_keeps_their_recorded_exchanges(
    gateway: RunningGateway, server: ScriptedServer, tmp_path: Path, reads: bool
):
    session = gateway.session()
    openai_talk(session, stream=False)
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go on"}]}
    data = json.dumps(body).encode()
    server.pace = 0.0 if not reads else 0.5
    address = urllib.parse.urlsplit(session["openai"])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((address.hostname, address.port))
        head = f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: x\r\n"
        head += f"Authorization: Bearer {session['key']}\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        assert client.recv(12) == b"HTTP/1.1 200"
        time.sleep(1.0)  # until the buffers on the way to a client that does not read are full
        began = time.monotonic()
        code, err = gateway.stop()
        assert code == 0, err
        assert time.monotonic() - began < 20, err
    (file,) = (tmp_path / "kept").glob("*/trajectory.jsonl.zst")
    trajectory = read_trajectory(file)
    assert trajectory.complete
    assert len(trajectory.exchanges) >= 2
