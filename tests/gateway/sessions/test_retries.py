"""Repeated requests: a retry shares the first answer, a second sample does not."""

import asyncio
from typing import Any

import aiohttp
import pytest
from gateway_parts import ENDPOINTS, ServedSession, Stepped, asked, done, say
from raw_http import connected

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.sessions import retries
from plimsoll.testing.waiting import until

every_path = pytest.mark.parametrize("path", ENDPOINTS)
both_ways = pytest.mark.parametrize("stream", [False, True])
COUNT = "x-stainless-retry-count"


async def _ask(
    served: ServedSession, count: str | None, number: int = 0, **more: Any
) -> tuple[int, bytes]:
    path = "/v1/chat/completions"
    headers = {} if count is None else {COUNT: count}
    url = served.access.root + path
    async with served.client.post(url, json=asked(path, number, **more), headers=headers) as reply:
        return reply.status, await reply.read()


@every_path
@both_ways
async def test_a_retry_in_flight_waits_for_the_same_answer(served, stepped, path, stream):
    first, second = served.asking(path, stream=stream), served.asking(path, stream=stream)
    step = await stepped.call()
    await until(lambda: len(served.session.handlers) == 2)
    done(step, "once ", "only")
    (status, body), (again, same) = await asyncio.gather(first, second)
    assert (status, again) == (200, 200)
    assert b"once " in body and b"once " in same
    assert len(stepped.calls) == 1
    assert served.session.exchanges == 1


@every_path
async def test_a_retry_that_comes_midway_gets_the_whole_stream(served, stepped, path):
    first = served.start_stream(path)
    step = await stepped.call()
    say(step, "before ")
    reply = await first
    second = served.asking(path, stream=True)
    await until(lambda: len(served.session.handlers) == 2)
    done(step, "after")
    status, body = await second
    assert status == 200
    assert b"before " in body and b"after" in body
    assert b"after" in await reply.read()
    assert served.session.exchanges == 1


@every_path
@both_ways
async def test_a_retry_of_an_answered_request_gets_the_cached_answer(
    served: ServedSession, stepped: Stepped, path: str, stream: bool
):
    asking = served.asking(path, stream=stream)
    done(await stepped.call(), "once")
    await asking
    status, body = await served.ask(path, stream=stream)
    assert status == 200
    assert b"once" in body
    assert len(stepped.calls) == 1
    assert served.session.exchanges == 1


async def test_a_retry_takes_over_from_a_disconnected_client(
    served: ServedSession, stepped: Stepped
):
    first, second = served.asking(stream=True), served.asking(stream=True)
    step = await stepped.call()
    await until(lambda: len(served.session.handlers) == 2)
    first.cancel()
    await until(lambda: len(served.session.handlers) == 1)
    assert not step.cancelled
    done(step, "still")
    assert b"still" in (await second)[1]
    assert served.session.exchanges == 1


async def test_a_retry_of_an_abandoned_request_is_a_new_request(served, stepped):
    first = served.asking()
    step = await stepped.call()
    first.cancel()
    await until(lambda: step.cancelled)
    second = served.asking()
    done(await stepped.call(1), "fine")
    assert (await second)[0] == 200
    [exchange] = (await served.read()).exchanges
    assert exchange.branch == "start"


async def test_a_retry_of_a_failure_is_a_new_request(served: ServedSession, stepped: Stepped):
    first = served.asking()
    say(await stepped.call(), Refusal("upstream", "it failed"))
    assert (await first)[0] == 502
    second = served.asking()
    done(await stepped.call(1), "fine")
    assert (await second)[0] == 200


async def test_a_second_sample_is_distinguished_from_a_retry_in_flight(
    served: ServedSession, stepped: Stepped
):
    first = asyncio.create_task(_ask(served, "0"))
    await stepped.call()
    second = asyncio.create_task(_ask(served, "0"))
    await stepped.call(1)
    retry = asyncio.create_task(_ask(served, "1"))
    await until(lambda: len(served.session.handlers) == 3)
    assert len(stepped.calls) == 2
    for number, step in enumerate(stepped.calls):
        done(step, f"sample {number}")
    bodies = [body for _, body in await asyncio.gather(first, second, retry)]
    assert b"sample 0" in bodies[0] and b"sample 1" in bodies[1] and b"sample 1" in bodies[2]
    exchanges = (await served.read()).exchanges
    assert sorted(exchange.branch for exchange in exchanges) == ["again", "start"]


async def test_a_client_that_never_retried_gets_a_second_answer(
    served: ServedSession, stepped: Stepped
):
    for number in range(2):
        asking = asyncio.create_task(_ask(served, "0"))
        done(await stepped.call(number), f"sample {number}")
        assert f"sample {number}".encode() in (await asking)[1]
    assert b"sample 1" in (await _ask(served, "1"))[1]
    assert served.session.exchanges == 2


async def test_an_undelivered_answer_is_repeated_whatever_the_header_says(
    served: ServedSession, stepped: Stepped, monkeypatch: pytest.MonkeyPatch
):
    """Agents with their own retry logic mark every request as the first."""
    monkeypatch.setattr(retries, "MAX_ANSWER_BYTES", 1 << 30)
    raw = await connected(served)
    raw.reader._transport.pause_reading()
    raw.post("/v1/chat/completions", asked("/v1/chat/completions"))
    done(await stepped.call(), "x" * (20 << 20))
    await until(lambda: served.session.exchanges == 1)
    raw.cut()
    await until(lambda: not served.session.handlers)
    status, body = await _ask(served, "0")
    assert status == 200
    assert len(body) > 20 << 20
    assert (len(stepped.calls), served.session.exchanges) == (1, 1)


async def test_the_same_connection_gets_a_second_answer(served: ServedSession, stepped: Stepped):
    """The first answer has arrived: a client does not reuse a connection before that."""
    headers = {"Authorization": f"Bearer {served.access.key}"}
    url = served.access.openai + "/chat/completions"
    async with aiohttp.ClientSession(headers=headers) as client:
        for number in range(2):
            post = client.post(url, json=asked("/v1/chat/completions"))
            asking = asyncio.ensure_future(post)
            done(await stepped.call(number), f"answer {number}")
            async with await asking as reply:
                assert f"answer {number}" in await reply.text()
    assert served.session.exchanges == 2


async def test_another_body_or_path_is_another_request(served: ServedSession, stepped: Stepped):
    first, second = served.asking(), served.asking(number=1)
    third, fourth = served.asking("/v1/messages"), served.asking(stream=True)
    await until(lambda: len(stepped.calls) == 4)
    for step in stepped.calls:
        done(step, "fine")
    await asyncio.gather(first, second, third, fourth)
    assert served.session.exchanges == 4


async def test_one_session_never_gets_the_answer_of_another(
    served: ServedSession, stepped: Stepped
):
    other = await served.gateway.open(served.folder / "other", blobs=served.folder / "blobs")
    theirs = other.access(served.gateway.port)
    asking = served.asking()
    done(await stepped.call(), "mine")
    await asking
    post = served.client.post(
        theirs.openai + "/chat/completions",
        json=asked("/v1/chat/completions"),
        headers={"Authorization": f"Bearer {theirs.key}"},
    )
    asking = asyncio.ensure_future(post)
    done(await stepped.call(1), "yours")
    async with await asking as reply:
        assert "yours" in await reply.text()


async def test_old_and_long_answers_are_not_cached(
    served: ServedSession, stepped: Stepped, monkeypatch
):
    monkeypatch.setattr(retries, "MAX_ANSWER_BYTES", 100)
    asking = served.asking()
    done(await stepped.call(), "x" * 101)
    await asking
    asking = served.asking()
    done(await stepped.call(1), "short")
    await asking
    monkeypatch.setattr(retries, "CACHE_SECONDS", -1.0)
    asking = served.asking(number=1)
    done(await stepped.call(2), "too old")
    await asking
    asking = served.asking(number=1)
    done(await stepped.call(3), "fine")
    assert b"fine" in (await asking)[1]


async def test_only_the_latest_answers_are_cached(served: ServedSession, stepped: Stepped):
    for number in range(retries.MAX_ANSWERS + 1):
        asking = served.asking(number=number)
        done(await stepped.call(number), "fine")
        await asking
    assert (await served.ask(number=1))[0] == 200
    assert len(stepped.calls) == retries.MAX_ANSWERS + 1
    oldest = served.asking(number=0)
    done(await stepped.call(retries.MAX_ANSWERS + 1), "anew")
    assert b"anew" in (await oldest)[1]
