"""The same request again: a retry shares the first one's answer, a second sample does not."""

import asyncio
from typing import Any

import aiohttp
import pytest
from gateway_parts import ENDPOINTS, Place, Stepped, asked, done, eventually, say
from raw_http import connected

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.sessions import retries

every_path = pytest.mark.parametrize("path", ENDPOINTS)
both_ways = pytest.mark.parametrize("stream", [False, True])
COUNT = "x-stainless-retry-count"


async def _ask(place: Place, count: str | None, number: int = 0, **more: Any) -> tuple[int, bytes]:
    path = "/v1/chat/completions"
    headers = {} if count is None else {COUNT: count}
    url = place.access.root + path
    async with place.client.post(url, json=asked(path, number, **more), headers=headers) as reply:
        return reply.status, await reply.read()


@every_path
@both_ways
async def test_a_retry_in_flight_waits_for_the_same_answer(place, stepped, path, stream):
    first, second = place.asking(path, stream=stream), place.asking(path, stream=stream)
    step = await stepped.call()
    await eventually(lambda: len(place.session.presence) == 2)
    done(step, "once ", "only")
    (status, body), (again, same) = await asyncio.gather(first, second)
    assert (status, again) == (200, 200)
    assert b"once " in body and b"once " in same
    assert len(stepped.calls) == 1
    assert place.session.exchanges == 1


@every_path
async def test_a_retry_that_comes_midway_gets_the_whole_stream(place, stepped, path):
    first = place.opening(path)
    step = await stepped.call()
    say(step, "before ")
    reply = await first
    second = place.asking(path, stream=True)
    await eventually(lambda: len(place.session.presence) == 2)
    done(step, "after")
    status, body = await second
    assert status == 200
    assert b"before " in body and b"after" in body
    assert b"after" in await reply.read()
    assert place.session.exchanges == 1


@every_path
@both_ways
async def test_a_retry_of_what_was_just_answered_gets_the_answer_again(
    place: Place, stepped: Stepped, path: str, stream: bool
):
    asking = place.asking(path, stream=stream)
    done(await stepped.call(), "once")
    await asking
    status, body = await place.ask(path, stream=stream)
    assert status == 200
    assert b"once" in body
    assert len(stepped.calls) == 1
    assert place.session.exchanges == 1


async def test_a_retry_takes_over_from_a_client_that_went_away(place: Place, stepped: Stepped):
    first, second = place.asking(stream=True), place.asking(stream=True)
    step = await stepped.call()
    await eventually(lambda: len(place.session.presence) == 2)
    first.cancel()
    await eventually(lambda: len(place.session.presence) == 1)
    assert not step.cancelled
    done(step, "still")
    assert b"still" in (await second)[1]
    assert place.session.exchanges == 1


async def test_a_retry_of_a_request_whose_client_is_gone_is_asked_anew(place, stepped):
    first = place.asking()
    step = await stepped.call()
    first.cancel()
    await eventually(lambda: step.cancelled)
    second = place.asking()
    done(await stepped.call(1), "fine")
    assert (await second)[0] == 200
    [exchange] = (await place.read()).exchanges
    assert exchange.branch == "start"


async def test_a_retry_of_a_failure_is_asked_anew(place: Place, stepped: Stepped):
    first = place.asking()
    say(await stepped.call(), Refusal("upstream", "it failed"))
    assert (await first)[0] == 502
    second = place.asking()
    done(await stepped.call(1), "fine")
    assert (await second)[0] == 200


async def test_a_second_sample_is_told_from_a_retry_in_flight(place: Place, stepped: Stepped):
    first = asyncio.create_task(_ask(place, "0"))
    await stepped.call()
    second = asyncio.create_task(_ask(place, "0"))
    await stepped.call(1)
    retry = asyncio.create_task(_ask(place, "1"))
    await eventually(lambda: len(place.session.presence) == 3)
    assert len(stepped.calls) == 2
    for number, step in enumerate(stepped.calls):
        done(step, f"sample {number}")
    bodies = [body for _, body in await asyncio.gather(first, second, retry)]
    assert b"sample 0" in bodies[0] and b"sample 1" in bodies[1] and b"sample 1" in bodies[2]
    exchanges = (await place.read()).exchanges
    assert sorted(exchange.branch for exchange in exchanges) == ["again", "start"]


async def test_who_says_that_it_never_retried_gets_a_second_answer(place: Place, stepped: Stepped):
    for number in range(2):
        asking = asyncio.create_task(_ask(place, "0"))
        done(await stepped.call(number), f"sample {number}")
        assert f"sample {number}".encode() in (await asking)[1]
    assert b"sample 1" in (await _ask(place, "1"))[1]
    assert place.session.exchanges == 2


async def test_an_answer_that_did_not_arrive_is_given_again_whatever_is_said(
    place: Place, stepped: Stepped, monkeypatch: pytest.MonkeyPatch
):
    """Agents that retry by themselves say of every request that it is their first."""
    monkeypatch.setattr(retries, "MAX_ANSWER_BYTES", 1 << 30)
    raw = await connected(place)
    raw.reader._transport.pause_reading()
    raw.post("/v1/chat/completions", asked("/v1/chat/completions"))
    done(await stepped.call(), "x" * (20 << 20))
    await eventually(lambda: place.session.exchanges == 1)
    raw.cut()
    await eventually(lambda: not place.session.presence)
    status, body = await _ask(place, "0")
    assert status == 200
    assert len(body) > 20 << 20
    assert (len(stepped.calls), place.session.exchanges) == (1, 1)


async def test_by_the_same_connection_a_second_answer_is_wanted(place: Place, stepped: Stepped):
    """The first has arrived: a client does not ask on before."""
    headers = {"Authorization": f"Bearer {place.access.key}"}
    url = place.access.openai + "/chat/completions"
    async with aiohttp.ClientSession(headers=headers) as client:
        for number in range(2):
            post = client.post(url, json=asked("/v1/chat/completions"))
            asking = asyncio.ensure_future(post)
            done(await stepped.call(number), f"answer {number}")
            async with await asking as reply:
                assert f"answer {number}" in await reply.text()
    assert place.session.exchanges == 2


async def test_with_another_body_or_path_it_is_another_request(place: Place, stepped: Stepped):
    first, second = place.asking(), place.asking(number=1)
    third, fourth = place.asking("/v1/messages"), place.asking(stream=True)
    await eventually(lambda: len(stepped.calls) == 4)
    for step in stepped.calls:
        done(step, "fine")
    await asyncio.gather(first, second, third, fourth)
    assert place.session.exchanges == 4


async def test_one_session_never_gets_the_answer_of_another(place: Place, stepped: Stepped):
    other = await place.gateway.open(place.folder / "other", blobs=place.folder / "blobs")
    theirs = other.access(place.gateway.port)
    asking = place.asking()
    done(await stepped.call(), "mine")
    await asking
    post = place.client.post(
        theirs.openai + "/chat/completions",
        json=asked("/v1/chat/completions"),
        headers={"Authorization": f"Bearer {theirs.key}"},
    )
    asking = asyncio.ensure_future(post)
    done(await stepped.call(1), "yours")
    async with await asking as reply:
        assert "yours" in await reply.text()


async def test_old_and_long_answers_are_not_kept(place: Place, stepped: Stepped, monkeypatch):
    monkeypatch.setattr(retries, "MAX_ANSWER_BYTES", 100)
    asking = place.asking()
    done(await stepped.call(), "x" * 101)
    await asking
    asking = place.asking()
    done(await stepped.call(1), "short")
    await asking
    monkeypatch.setattr(retries, "CACHE_SECONDS", -1.0)
    asking = place.asking(number=1)
    done(await stepped.call(2), "too old")
    await asking
    asking = place.asking(number=1)
    done(await stepped.call(3), "fine")
    assert b"fine" in (await asking)[1]


async def test_only_the_latest_answers_are_kept(place: Place, stepped: Stepped):
    for number in range(retries.MAX_ANSWERS + 1):
        asking = place.asking(number=number)
        done(await stepped.call(number), "fine")
        await asking
    assert (await place.ask(number=1))[0] == 200
    assert len(stepped.calls) == retries.MAX_ANSWERS + 1
    oldest = place.asking(number=0)
    done(await stepped.call(retries.MAX_ANSWERS + 1), "anew")
    assert b"anew" in (await oldest)[1]
