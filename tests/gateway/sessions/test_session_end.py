"""Ending a session wakes and ends everything in it. Nothing waits for ever."""

import asyncio

import pytest
from gateway_parts import ENDPOINTS, Place, Stepped, asked, done, eventually, say, serving
from raw_http import connected

from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions import session as session_module
from plimsoll.trajectories.trajectory_file import read_trajectory

every_path = pytest.mark.parametrize("path", ENDPOINTS)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is cut off while a test waits: who is not told holds it up."""
    monkeypatch.setattr(session_module, "END_SECONDS", 60.0)


@every_path
async def test_everybody_who_waits_is_told(place: Place, stepped: Stepped, path: str):
    whole, silent = place.asking(path), place.asking(path, 1, stream=True)
    opening = place.opening(path, 2)
    await stepped.call(2)
    for step in stepped.calls:
        say(step, "one")
    reply = await opening
    counting = asyncio.create_task(_count(place))
    await eventually(lambda: len(place.session.presence) == 4)
    async with asyncio.timeout(30):
        await place.session.end()
        assert (await whole)[0] == 401
        assert b"ended" in (await silent)[1]
        assert b"ended" in await reply.read()
        assert await counting == 401
    assert all(step.cancelled for step in stepped.calls)
    assert place.session.in_flight == 0
    assert not place.session._tasks


async def _count(place: Place) -> int:
    url = place.access.root + "/v1/messages/count_tokens"
    async with place.client.post(url, json=asked("/v1/messages")) as reply:
        return reply.status


async def test_who_still_sends_its_body_is_told(place: Place):
    raw = await connected(place)
    raw.send(raw.head("/v1/messages", 1000) + b'{"model": ')
    await eventually(lambda: len(place.session.presence) == 1)
    async with asyncio.timeout(30):
        await place.session.end()
        said = await raw.until(b"ended")
    assert said.startswith(b"HTTP/1.1 401")
    raw.cut()


async def test_who_does_not_take_its_answer_is_cut_off(
    place: Place, stepped: Stepped, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(session_module, "END_SECONDS", 0.3)
    raw = await connected(place)
    raw.post("/v1/chat/completions", asked("/v1/chat/completions", stream=True))
    raw.reader._transport.pause_reading()
    step = await stepped.call()
    for _ in range(300):
        say(step, "x" * 65536)
    await asyncio.sleep(0.3)
    async with asyncio.timeout(30):
        await place.session.end()
    await eventually(lambda: not place.session.presence)
    raw.cut()


async def test_it_ends_once_and_for_all_who_ask(place: Place):
    first, second = await asyncio.gather(place.session.end(), place.session.end())
    assert first == second == await place.session.end()
    trajectory = read_trajectory(first)
    assert trajectory.complete
    assert trajectory.closed is not None and trajectory.closed.exchanges == 0


async def test_a_cancelled_end_is_still_an_end(place: Place, stepped: Stepped):
    asking = place.asking()
    await stepped.call()
    ending = asyncio.create_task(place.session.end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert read_trajectory(await place.session.end()).complete
    assert (await asking)[0] == 401


async def test_a_deaf_upstream_does_not_hold_it_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(session_module, "END_SECONDS", 0.2)
    go = asyncio.Event()

    class Deaf(Stepped):
        async def answer(self, *_):
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue
            return await super().answer()

    place.session._upstream = deaf = Deaf()
    asking = place.asking()
    await eventually(lambda: place.session.in_flight == 1)
    async with asyncio.timeout(30):
        await place.session.end()
        assert (await asking)[0] == 401
    assert "do not end when cancelled" in caplog.text
    go.set()
    done(await deaf.call(), "too late")
    await eventually(lambda: not place.session._tasks)
    assert place.session.exchanges == 0


async def test_leaving_the_gateway_ends_all_sessions(tmp_path, stepped: Stepped):
    async with serving(stepped, tmp_path) as place:
        others = [
            await place.gateway.open(tmp_path / str(number), blobs=tmp_path / "blobs")
            for number in range(3)
        ]
        asking = place.asking()
        await stepped.call()
        async with asyncio.timeout(30):
            await place.gateway.__aexit__(None, None, None)
        assert (await asking)[0] == 401
        for session in (place.session, *others):
            assert session.sealed
            assert read_trajectory(await session.end()).complete
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", place.gateway.port)
        await place.gateway.__aenter__()


async def test_an_idle_connection_does_not_hold_the_gateway_up(stepped: Stepped):
    async with Gateway(stepped) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started < 10
    writer.close()


async def test_nothing_is_left_running(tmp_path, stepped: Stepped):
    before = asyncio.all_tasks()
    async with serving(stepped, tmp_path) as place:
        for number in range(4):
            asking = place.asking(number=number, stream=number % 2 == 0)
            done(await stepped.call(number), "fine")
            await asking
        waiting = place.asking(number=9)
        await stepped.call(4)
    await asyncio.gather(waiting, return_exceptions=True)
    await eventually(lambda: asyncio.all_tasks() == before)
