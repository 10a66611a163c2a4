"""Request bodies: size limits, compression and timeouts."""

import asyncio
import gzip
import json
import tracemalloc
import zlib

import pytest
import zstandard
from gateway_parts import ENDPOINTS, ServedSession, Stepped, asked, done, serving
from raw_http import connected

from plimsoll.gateway.http import request_body
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.testing.waiting import until

every_path = pytest.mark.parametrize("path", ENDPOINTS)
LIMIT = 100_000
BODY = json.dumps(asked("/v1/chat/completions")).encode()


@pytest.fixture
async def served(tmp_path, stepped):
    async with serving(stepped, tmp_path, Limits(body_bytes=LIMIT)) as made:
        yield made


async def _post(served: ServedSession, body: bytes, **headers: str) -> tuple[int, bytes]:
    url = served.access.root + "/v1/chat/completions"
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with served.client.post(url, data=body, headers=sent) as reply:
        return reply.status, await reply.read()


def _deflated(body: bytes) -> bytes:
    bare = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return bare.compress(body) + bare.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("identity", BODY),
        ("gzip", gzip.compress(BODY)),
        ("GZIP", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", _deflated(BODY)),
        ("zstd", zstandard.compress(BODY)),
        ("zstd", zstandard.compress(BODY[:20]) + zstandard.compress(BODY[20:])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_compressed_body_is_read(served: ServedSession, stepped: Stepped, encoding, body):
    asking = asyncio.create_task(_post(served, body, Content_Encoding=encoding))
    done(await stepped.call(), "fine")
    assert (await asking)[0] == 200


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", BODY),
        ("gzip", gzip.compress(BODY)[:-9]),
        ("gzip", b""),
        ("deflate", b"\xff\xff\xff"),
        ("zstd", BODY),
        ("zstd", zstandard.compress(BODY)[:-9]),
        ("br", BODY),
        ("gzip, zstd", BODY),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_body_that_cannot_be_decompressed_is_a_bad_request(served, stepped, encoding, body):
    status, answer = await _post(served, body, Content_Encoding=encoding)
    assert status == 400
    assert b"error" in answer
    assert stepped.calls == []


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "deflate"])
async def test_a_decompression_bomb_is_refused_quickly(served: ServedSession, encoding: str):
    bomb = b" " * (200 << 20)
    pack = {"gzip": gzip.compress, "zstd": zstandard.compress, "deflate": zlib.compress}[encoding]
    packed = pack(bomb)
    del bomb
    if len(packed) > LIMIT:  # gzip and deflate compress at most 1000 to 1
        packed = pack(b" " * (50 << 20))
    assert len(packed) < LIMIT
    tracemalloc.start()
    status, answer = await _post(served, packed, Content_Encoding=encoding)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert status == 413
    assert str(LIMIT).encode() in answer
    assert peak < 5 << 20


@every_path
async def test_a_body_with_a_too_large_content_length_is_not_read(served: ServedSession, path: str):
    raw = await connected(served)
    raw.send(raw.head(path, 100 << 20))
    answer = await raw.until(b"error")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"Connection: close" in answer
    raw.cut()
    assert [trouble.what for trouble in (await served.read()).troubles] == ["too_large"]


async def test_a_body_that_exceeds_the_limit_is_not_read_to_its_end(served: ServedSession):
    """It does not announce its size, and never ends."""
    raw = await connected(served)
    raw.send(raw.head("/v1/messages", None, "Transfer-Encoding: chunked"))
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"

    async def flood() -> None:
        while True:
            raw.send(piece)
            await raw.drain()

    flooding = asyncio.create_task(flood())
    assert (await raw.until(b"error")).startswith(b"HTTP/1.1 413")
    with pytest.raises(ConnectionError):  # it may continue for a moment, then it is cut
        await asyncio.wait_for(flooding, 30)
    await until(lambda: not served.session.handlers)


async def test_a_body_of_exactly_the_limit_is_read(served: ServedSession, stepped: Stepped):
    whole = json.dumps(asked("/v1/chat/completions", user="")).encode()
    body = whole.replace(b'"user": ""', b'"user": "' + b"x" * (LIMIT - len(whole)) + b'"')
    assert len(body) == LIMIT
    asking = asyncio.create_task(_post(served, body))
    done(await stepped.call(), "fine")
    assert (await asking)[0] == 200
    assert (await _post(served, body + b" "))[0] == 413


async def test_a_body_that_does_not_arrive_times_out(served: ServedSession, monkeypatch):
    monkeypatch.setattr(request_body, "READ_SECONDS", 0.2)
    raw = await connected(served)
    raw.send(raw.head("/v1/messages", 1000) + b'{"model": "m"')
    answer = await raw.until(b"error")
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"in time" in answer
    raw.cut()


async def test_stalled_bodies_hold_a_bounded_number_of_bytes(
    served: ServedSession, stepped: Stepped
):
    """Bodies over the budget wait, and small bodies are not delayed."""
    stalled = [await connected(served) for _ in range(3)]
    for raw in stalled:
        raw.send(raw.head("/v1/messages", LIMIT) + b" " * (LIMIT - 1))
    await until(lambda: len(served.session.handlers) == 3)
    await until(lambda: served.session.handlers.body_budget.used == 2 * LIMIT)
    asking = served.asking()
    done(await stepped.call(), "fine")
    assert (await asking)[0] == 200
    late = await connected(served)
    late.send(late.head("/v1/chat/completions", len(BODY)) + BODY[:9])
    await until(lambda: len(served.session.handlers) == 4)
    for raw in stalled:
        raw.cut()
    await until(lambda: len(served.session.handlers) == 1)
    assert served.session.handlers.body_budget.used == len(BODY)
    late.send(BODY[9:].replace(b"hello", b"after"))
    done(await stepped.call(1), "at last")
    assert (await late.until(b"at last")).startswith(b"HTTP/1.1 200")
    assert served.session.handlers.body_budget.used == 0


async def test_a_body_over_the_budget_is_refused_as_retryable(served: ServedSession, monkeypatch):
    stalled = [await connected(served) for _ in range(2)]
    for raw in stalled:
        raw.send(raw.head("/v1/messages", None, "Transfer-Encoding: chunked"))
    await until(lambda: served.session.handlers.body_budget.used == 2 * LIMIT)
    monkeypatch.setattr(request_body, "READ_SECONDS", 0.1)
    late = await connected(served)
    late.send(late.head("/v1/messages", 1000))
    answer = await late.until(b"error")
    assert answer.startswith(b"HTTP/1.1 429") and b"Retry-After: 1" in answer
    for raw in stalled:
        raw.cut()
    await until(lambda: not served.session.handlers)
    assert served.session.handlers.body_budget.used == 0


async def test_the_end_of_a_session_wakes_bodies_that_wait_for_the_budget(served: ServedSession):
    raws = [await connected(served) for _ in range(3)]
    for raw in raws:
        raw.send(raw.head("/v1/messages", LIMIT))
    await until(lambda: len(served.session.handlers) == 3)
    await served.session.end()
    for raw in raws:
        assert (await raw.until(b"ended")).startswith(b"HTTP/1.1 401")
    assert served.session.handlers.body_budget.used == 0


async def test_expect_100_continue_is_answered(served: ServedSession, stepped: Stepped):
    raw = await connected(served)
    raw.send(raw.head("/v1/chat/completions", len(BODY), "Expect: 100-continue"))
    assert b"100 Continue" in await raw.until(b"\r\n\r\n")
    raw.send(BODY)
    done(await stepped.call(), "fine")
    assert (await raw.until(b"fine")).startswith(b"HTTP/1.1 200")


async def test_expect_100_continue_of_a_too_large_body_is_refused_at_once(served: ServedSession):
    raw = await connected(served)
    raw.send(raw.head("/v1/chat/completions", LIMIT + 1, "Expect: 100-continue"))
    assert (await raw.until(b"error")).startswith(b"HTTP/1.1 413")


async def test_a_body_in_many_pieces_is_one_body(served: ServedSession, stepped: Stepped):
    raw = await connected(served)
    raw.send(raw.head("/v1/chat/completions", len(BODY)))
    for at in range(0, len(BODY), 7):
        raw.send(BODY[at : at + 7])
        await asyncio.sleep(0.001)
    done(await stepped.call(), "fine")
    assert b"fine" in await raw.until(b"fine")
    raw.cut()


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"{}", b"{}{}"])
@every_path
async def test_an_empty_body_is_a_bad_request(served: ServedSession, path: str, body: bytes):
    async with served.client.post(served.access.root + path, data=body) as reply:
        assert reply.status == 400
        assert "error" in await reply.json()
    assert served.gateway.metrics.internal == 0
