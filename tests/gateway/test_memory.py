"""Nothing of a request stays in memory once it is answered, refused, cancelled or cut.

Objects are counted without the garbage collector: a process under load keeps cyclic garbage for
long.
"""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from gateway_parts import (
    ENDPOINTS,
    ServedSession,
    Stepped,
    alive,
    asked,
    done,
    say,
    serving,
)
from raw_http import connected

from plimsoll.gateway.completions import Refusal, Request
from plimsoll.gateway.http.replies import StreamReply
from plimsoll.gateway.sessions import pending_request
from plimsoll.gateway.sessions.pending_request import Listener, PendingRequest
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.testing.waiting import until

every_path = pytest.mark.parametrize("path", ENDPOINTS)
both_ways = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # exclude older objects, which would take long to count
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
async def served(tmp_path, stepped, monkeypatch) -> AsyncIterator[ServedSession]:
    """Without cached answers: they hold a part of their request."""
    monkeypatch.setattr("plimsoll.gateway.sessions.retries.MAX_ANSWERS", 0)
    async with serving(stepped, tmp_path) as made:
        yield made


def _left() -> dict[str, int]:
    kinds = (Request, PendingRequest, Listener, StreamReply)
    return {kind.__name__: count for kind in kinds if (count := alive(kind))}


async def _nothing_is_left(served: ServedSession) -> None:
    await until(lambda: not served.session.handlers)
    await until(lambda: not _left(), 2)


@every_path
@both_ways
async def test_a_request_that_waits_is_held(served: ServedSession, stepped: Stepped, path, stream):
    """Verifies that the counting works."""
    asking = served.asking(path, stream=stream)
    step = await stepped.call()
    assert _left()["Request"] == 1
    assert _left()["PendingRequest"] == 1
    done(step, "fine")
    await asking


@every_path
@both_ways
async def test_an_answered_request_leaves_nothing(
    served: ServedSession, stepped: Stepped, path, stream
):
    asking = served.asking(path, stream=stream)
    done(await stepped.call(), "fine")
    await asking
    await _nothing_is_left(served)


@every_path
@both_ways
@pytest.mark.parametrize("pieces", [[], ["one"]])
async def test_a_failed_request_leaves_nothing(served, stepped, path, stream, pieces):
    asking = served.asking(path, stream=stream)
    say(await stepped.call(), *pieces, Refusal("upstream", "it died"))
    await asking
    await _nothing_is_left(served)


@every_path
@both_ways
@pytest.mark.parametrize("pieces", [[], ["one"]])
async def test_a_cut_request_leaves_nothing(served, stepped, path, stream, pieces):
    raw = await connected(served)
    raw.post(path, asked(path, stream=stream))
    say(await stepped.call(), *pieces)
    if pieces and stream:
        await raw.until(b"one")
    raw.cut()
    await _nothing_is_left(served)


@every_path
@both_ways
async def test_an_ended_session_leaves_nothing(
    served: ServedSession, stepped: Stepped, path, stream
):
    asking = served.asking(path, stream=stream)
    await stepped.call()
    await served.session.end()
    await asking
    await _nothing_is_left(served)


@every_path
async def test_a_refused_request_leaves_nothing(served: ServedSession, path: str):
    for body in (b"{", b'{"model": "m"}', b'{"model": "m", "messages": [5], "input": [5]}'):
        async with served.client.post(served.access.root + path, data=body) as reply:
            assert reply.status == 400
    await _nothing_is_left(served)


async def test_an_internal_error_leaves_nothing(
    served: ServedSession, stepped: Stepped, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pending_request.log, "disabled", True)  # pytest keeps log records
    stepped.answer = None
    assert (await served.ask())[0] == 502
    await _nothing_is_left(served)


@every_path
async def test_the_body_is_freed_at_the_first_piece(
    served: ServedSession, stepped: Stepped, path: str
):
    """A stream can last for minutes; its request body is not needed any more."""
    mark = "a text that stands in no other object"
    if path == "/v1/responses":
        opening = served.start_stream(path, input=mark, instructions=mark)
    else:
        opening = served.start_stream(path, messages=[{"role": "user", "content": mark}])
    step = await stepped.call()
    [request] = [each for each in gc.get_objects() if isinstance(each, Request)]
    assert mark.encode() in bytes(request.messages)
    say(step, "one")
    reply = await opening
    assert len(request.history) == 0
    assert (request.tools, request.settings) == (None, {})
    assert mark.encode() not in msgspec.json.encode([request.messages])
    del request
    done(step)
    await reply.read()


async def test_an_ended_session_is_freed(served: ServedSession, stepped: Stepped):
    for number in range(5):
        session = await served.gateway.open(served.folder / str(number), blobs=served.folder / "b")
        await session.end()
    del session
    await until(lambda: alive(Session) == 1, 2)


async def test_a_cached_answer_does_not_hold_the_body(tmp_path: Path, stepped: Stepped):
    async with serving(stepped, tmp_path) as served:
        asking = served.asking()
        done(await stepped.call(), "fine")
        await asking
        await until(lambda: _left() == {"Request": 1})
        [request] = [each for each in gc.get_objects() if isinstance(each, Request)]
        assert len(request.history) == 0
        assert bytes(request.messages) == b"[]"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_memory_does_not_grow_with_requests(tmp_path: Path):
    """Two thousand requests of 20 KB: a leak would be 40 MB."""
    gc.enable()
    upstream = ScriptedPolicy(lambda _: "fine")
    async with serving(upstream, tmp_path) as served:
        headers = {"Authorization": f"Bearer {served.access.key}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            await _ask_many(client, served, 500)
            before = _resident()
            await _ask_many(client, served, 2000)
            assert _resident() - before < 10 << 20
        await until(lambda: len(asyncio.all_tasks()) < 10)


async def _ask_many(client: aiohttp.ClientSession, served: ServedSession, count: int) -> None:
    filler = "x" * 20_000
    for number in range(count):
        path = list(ENDPOINTS)[number % 3]
        body = asked(path, number % 1000, stream=number % 2 == 0, user=filler)
        if path != "/v1/responses":
            body = {**body, "metadata": {}} if path == "/v1/messages" else body
        async with client.post(served.access.root + path, json=body) as reply:
            assert reply.status == 200, await reply.text()
            await reply.read()
