"""Tool calls of servers that give them no ids."""

import json
from pathlib import Path

import aiohttp
import pytest
from upstream_parts import BASH

from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.upstreams.factory import make_upstream
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.gateway.upstreams.scripted.server import ServerFeatures, serve_script
from plimsoll.trajectories.trajectory_file import read_trajectory

TWO = Turn(
    text="Both.",
    calls=(
        {"name": "bash", "arguments": {"command": "ls"}},  # type: ignore[arg-type]
        {"name": "bash", "arguments": {"command": "pwd"}},  # type: ignore[arg-type]
    ),
)
PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "tools": [BASH]},
    "/v1/messages": {
        "max_tokens": 500,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "bash", "input_schema": BASH["function"]["parameters"]}],  # type: ignore[index]
    },
}


def ids_in(content: str) -> list[str]:
    """The ids of tool calls in an answer, or in the events of a stream."""
    lines = [line[6:] for line in content.splitlines() if line.startswith("data: ")]
    found: list[str] = []

    def look(value: object) -> None:
        if isinstance(value, dict):
            if value.get("type") in ("function", "tool_use") and "id" in value:
                found.append(value["id"])
            for one in value.values():
                look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)

    for text in lines or [content]:
        if text != "[DONE]":
            look(json.loads(text))
    return found


@pytest.mark.parametrize("call_ids", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", PATHS)
async def test_each_call_has_the_same_id_in_the_answer_and_the_trajectory(
    tmp_path: Path, path: str, stream: bool, call_ids: bool
):
    offers = ServerFeatures(call_ids=call_ids)
    async with serve_script(Script(turns=(TWO,)), offers) as server:
        upstream = await make_upstream([server.url])
        async with Gateway(upstream) as gateway, aiohttp.ClientSession() as http:
            session = await gateway.open(tmp_path / "s", blobs=tmp_path / "b")
            access = session.access(gateway.port)
            body = {"model": "m", "stream": stream, **PATHS[path]}
            headers = {"authorization": f"Bearer {access.key}"}
            async with http.post(access.root + path, json=body, headers=headers) as reply:
                content = await reply.text()
                assert reply.status == 200, content
            trajectory = read_trajectory(await session.end())
        await upstream.close()
    (exchange,) = trajectory.exchanges
    calls = trajectory.answer_of(exchange).calls
    assert len({call.id for call in calls}) == 2
    assert all(call.id for call in calls)
    assert ids_in(content) == [call.id for call in calls]
    assert [json.loads(call.arguments) for call in calls] == [{"command": "ls"}, {"command": "pwd"}]
    assert not exchange.untrainable
