"""A body that is expensive to parse does not delay other clients, however small it is on the
wire.
"""

import asyncio
import gzip
import http.client
import json
import time

import pytest
from gateway_parts import ENDPOINTS, ServedSession, Stepped, asked, done

from plimsoll.gateway import parser_threads
from plimsoll.testing.waiting import until

PATHS = pytest.mark.parametrize("path", ENDPOINTS)


def _post(served: ServedSession, path: str, body: bytes, encoding: str = "") -> tuple[int, bytes]:
    """Sends from its own thread."""
    host, _, root = served.access.root.partition("//")[2].partition("/")
    client = http.client.HTTPConnection(host, timeout=120)
    headers = {"Authorization": f"Bearer {served.access.key}"}
    if encoding:
        headers["Content-Encoding"] = encoding
    client.request("POST", f"/{root}{path}", body, headers)
    reply = client.getresponse()
    answer = reply.status, reply.read()
    client.close()
    return answer


def _many(path: str, count: int) -> bytes:
    """A request with this many messages, the last of which is invalid."""
    message = {"role": "user", "content": [{"type": "text", "text": "x"}] * 12}
    if path == "/v1/responses":
        message = {"role": "user", "content": [{"type": "input_text", "text": "x"}] * 12}
    name = "input" if path == "/v1/responses" else "messages"
    return json.dumps({**ENDPOINTS[path], name: [message] * (count - 1) + [{"role": "x"}]}).encode()


@PATHS
@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_a_large_body_is_parsed_outside_the_event_loop(
    served: ServedSession, path: str, encoding: str
):
    body = _many(path, 6_000)
    sent = gzip.compress(body) if encoding else body
    process_seconds, of_loop = time.process_time(), time.thread_time()
    status, answer = await asyncio.to_thread(_post, served, path, sent, encoding)
    of_loop = time.thread_time() - of_loop
    process_seconds = time.process_time() - process_seconds
    assert status == 400, answer
    # The event loop itself only receives the bytes.
    assert of_loop < process_seconds / 3


@PATHS
async def test_millions_of_messages_in_a_small_body_are_refused(
    served: ServedSession, stepped: Stepped, path: str
):
    name = "input" if path == "/v1/responses" else "messages"
    empty = b'{"role":"user","content":""}'
    body = json.dumps({**ENDPOINTS[path], name: []}).encode()
    body = body.replace(b"[]", b"[" + b",".join([empty] * 1_000_000) + b"]")
    status, answer = await asyncio.to_thread(_post, served, path, gzip.compress(body), "gzip")
    assert status == 413
    assert b"JSON values" in answer
    error = json.loads(answer)["error"]
    if path == "/v1/messages":
        assert error["type"] == "request_too_large"
    else:
        assert error["code"] == "request_too_large"
    # The session continues, and no failure is counted.
    asking = served.asking(path)
    done(await stepped.call(), "fine")
    assert (await asking)[0] == 200
    assert served.gateway.metrics.internal == 0
    assert served.session.failure == "" and served.session.ending is None
    assert [each.what for each in (await served.read()).troubles] == ["too_large"]


async def test_a_large_request_is_answered_and_its_retry_is_deduplicated(
    served: ServedSession, stepped: Stepped
):
    body = json.dumps(
        asked("/v1/chat/completions", messages=[{"role": "user", "content": "x" * 300_000}])
    ).encode()
    posts = [
        asyncio.create_task(asyncio.to_thread(_post, served, "/v1/chat/completions", body))
        for _ in range(3)
    ]
    step = await stepped.call()
    await until(lambda: sum(len(each._listeners) for each in served.session._in_flight) == 3)
    done(step, "once")
    assert [status for status, _ in await asyncio.gather(*posts)] == [200] * 3
    assert len(stepped.calls) == 1
    assert served.session.exchanges == 1


async def test_a_session_that_ends_while_a_body_is_parsed_reports_it(
    served: ServedSession, stepped: Stepped
):
    """Simulates a slow parser: both threads are occupied."""
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def busy() -> None:
        asyncio.run_coroutine_threadsafe(held.wait(), loop).result()

    others = [asyncio.create_task(parser_threads.run_in_thread(busy)) for _ in range(2)]
    body = json.dumps(
        asked("/v1/chat/completions", messages=[{"role": "user", "content": "x" * 300_000}])
    ).encode()
    post = asyncio.create_task(asyncio.to_thread(_post, served, "/v1/chat/completions", body))
    await until(lambda: served.session.handlers.parsing.locked())
    ending = asyncio.create_task(served.session.end())
    await until(lambda: served.session.has_ended)
    held.set()
    assert (await post)[0] == 401
    await ending
    await asyncio.gather(*others)
    assert served.gateway.metrics.internal == 0
    assert stepped.calls == []


async def test_one_session_has_one_body_in_the_parser_threads(
    served: ServedSession, stepped: Stepped
):
    """The other bodies wait, and are answered one after another."""
    bodies = [
        json.dumps(
            asked("/v1/messages", number, messages=[{"role": "user", "content": "x" * 100_000}])
        ).encode()
        for number in range(6)
    ]
    posts = [
        asyncio.create_task(
            asyncio.to_thread(_post, served, "/v1/messages", gzip.compress(body), "gzip")
        )
        for body in bodies
    ]
    for number in range(6):
        done(await stepped.call(number), f"answer {number}")
    answers = await asyncio.gather(*posts)
    assert [status for status, _ in answers] == [200] * 6
    assert not served.session.handlers.parsing.locked()
    assert served.session.handlers.body_budget.used == 0
