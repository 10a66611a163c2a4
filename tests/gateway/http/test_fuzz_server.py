"""The running server under random input: no 500, no internal error, no leaks."""

import asyncio
import contextlib
import gc
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from gateway_parts import ENDPOINTS, ServedSession, asked, serving
from raw_http import connected

from parts import NIGHTLY
from plimsoll.gateway.completions import Request
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.script import CallSpec, Turn
from plimsoll.testing.waiting import until

ROUNDS = 1500 if NIGHTLY else 400
PATHS = [*ENDPOINTS, "/v1/messages/count_tokens", "/v1/models", "/v1/models/x", "/v1/nowhere", ""]
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1e308,
    2**70,
    "",
    "x" * 5000,
    "\x00\ud800",
    [],
    {},
    [[[[]]]],
    {"type": "text"},
    [{"role": "user"}],
    [{"role": "assistant", "content": None, "tool_calls": [{}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}],
]
JUNK = [
    b"",
    b"{",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"model":' * 5000,
    b'{"model": "m", "messages": NaN}',
    b'{"model": "m", "model": "n", "messages": [{"role": "user", "content": "x"}]}',
]


def _policy(asked) -> Turn:
    """Answers of all kinds, valid and invalid."""
    number = sum(map(len, (message.text for message in asked.messages))) % 7
    failures = {3: 500, 4: "cut", 5: "garbage", 6: "bad-call"}
    if number in failures:
        return Turn(failure=failures[number])
    calls = (CallSpec(name="run", arguments="{not json"),) if number == 2 else ()
    return Turn(text="x" * number, calls=calls)


def _mutated(source: random.Random) -> bytes:
    path = source.choice(list(ENDPOINTS))
    body = asked(path, source.randrange(1000), stream=source.random() < 0.5)
    for _ in range(source.randrange(3)):
        key = source.choice([*body, "tools", "system", "stop", "stream", "unknown"])
        if source.random() < 0.3:
            body.pop(key, None)
        else:
            body[key] = source.choice(VALUES)
    data = json.dumps(body).encode()
    if source.random() < 0.2:
        at = source.randrange(len(data))
        data = data[:at] + bytes([source.randrange(256)]) + data[at + 1 :]
    return data


async def _one(served: ServedSession, source: random.Random) -> int:
    path = source.choice(PATHS)
    body = source.choice(JUNK) if source.random() < 0.2 else _mutated(source)
    method = source.choice(["POST"] * 8 + ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
    headers = {"anthropic-version": "1"} if source.random() < 0.3 else {}
    if source.random() < 0.1:
        headers["Content-Encoding"] = source.choice(["gzip", "zstd", "br", "x"])
    if source.random() < 0.05:
        headers["Authorization"] = "Bearer wrong"
    url = served.access.root + path
    async with served.client.request(method, url, data=body, headers=headers) as reply:
        await reply.read()
        return reply.status


async def _cut(served: ServedSession, source: random.Random) -> None:
    """Half a request, or half an answer."""
    raw = await connected(served)
    body = _mutated(source)
    path = source.choice(list(ENDPOINTS))
    request = raw.head(path, len(body)) + body
    raw.send(request[: source.randrange(1, len(request) + 1)])
    with contextlib.suppress(ConnectionError):
        await raw.drain()
        await asyncio.sleep(source.random() * 0.01)
    raw.cut()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.nightly
async def test_no_input_causes_an_internal_error(tmp_path: Path):
    source = random.Random(20260)
    limits = Limits(body_bytes=1 << 20, concurrent=8)
    tasks, sockets = asyncio.all_tasks(), _descriptors()
    async with serving(ScriptedPolicy(_policy), tmp_path, limits) as served:
        await _one(served, source)
        statuses: dict[int, int] = {}
        for _ in range(ROUNDS):
            asking = [_one(served, source) for _ in range(6)]
            cutting = [_cut(served, source) for _ in range(2)]
            answered, _ = await asyncio.gather(asyncio.gather(*asking), asyncio.gather(*cutting))
            for status in answered:
                statuses[status] = statuses.get(status, 0) + 1
        assert served.gateway.metrics.internal == 0
        assert 500 not in statuses
        assert {200, 400, 401, 404, 405} <= set(statuses)
        assert sum(statuses.values()) > 100
        await until(lambda: not served.session.handlers and not served.session.in_flight)
        await until(lambda: not served.session._tasks)
        assert len(served.gateway.sessions) == 1
        trajectory = await served.read()
        assert trajectory.complete
    await until(lambda: asyncio.all_tasks() == tasks)
    gc.collect()
    assert _descriptors() <= sockets + 2
    assert not [each for each in gc.get_objects() if isinstance(each, Request)]


async def test_invalid_http_is_refused_or_disconnected(tmp_path: Path, caplog):
    async with serving(ScriptedPolicy(lambda _: "fine"), tmp_path) as served:
        for data in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET\r\n\r\n",
            b"POST / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000 + b"\r\n",
            b"GET / HTTP/1.1\r\nCookie: " + b"x" * 100_000 + b"\r\n\r\n",
            os.urandom(1000) + b"\r\n\r\n",
        ):
            raw = await connected(served)
            raw.send(data)
            with contextlib.suppress(ConnectionError):
                answer = await raw.reader.read(100)
                assert not answer or b" 500 " not in answer
            raw.cut()
        assert (await served.ask())[0] == 200
        assert served.gateway.metrics.internal == 0
