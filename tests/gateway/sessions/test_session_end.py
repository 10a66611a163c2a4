"""The end of a session wakes and ends everything in it. Nothing waits forever."""

import asyncio

import pytest
from gateway_parts import ENDPOINTS, ServedSession, Stepped, asked, done, say, serving
from raw_http import connected

from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions import session as session_module
from plimsoll.testing.waiting import until
from plimsoll.trajectories.trajectory_file import read_trajectory

every_path = pytest.mark.parametrize("path", ENDPOINTS)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the cancellation of handlers: a handler that is not woken blocks the test."""
    monkeypatch.setattr(session_module, "END_SECONDS", 60.0)


@every_path
async def test_every_waiting_client_is_answered(served: ServedSession, stepped: Stepped, path: str):
    whole, silent = served.asking(path), served.asking(path, 1, stream=True)
    opening = served.start_stream(path, 2)
    await stepped.call(2)
    for step in stepped.calls:
        say(step, "one")
    reply = await opening
    counting = asyncio.create_task(_count(served))
    await until(lambda: len(served.session.handlers) == 4)
    async with asyncio.timeout(30):
        await served.session.end()
        assert (await whole)[0] == 401
        assert b"ended" in (await silent)[1]
        assert b"ended" in await reply.read()
        assert await counting == 401
    assert all(step.cancelled for step in stepped.calls)
    assert served.session.in_flight == 0
    assert not served.session._tasks


async def _count(served: ServedSession) -> int:
    url = served.access.root + "/v1/messages/count_tokens"
    async with served.client.post(url, json=asked("/v1/messages")) as reply:
        return reply.status


async def test_a_call_that_times_out_at_the_same_time_does_not_break_the_end(
    served: ServedSession, stepped: Stepped, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(session_module, "COUNT_SECONDS", 0.01)
    expired, leave = asyncio.Event(), asyncio.Event()

    async def count(*_: object) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            expired.set()
            await leave.wait()  # a call may take a moment to stop
        return 0

    monkeypatch.setattr(stepped, "count", count)
    counting = asyncio.create_task(_count(served))
    await expired.wait()
    ending = asyncio.create_task(served.session.end())
    await until(lambda: served.session.handlers._closing)
    leave.set()
    assert await counting == 401
    assert read_trajectory(await ending).complete


async def test_a_client_that_still_sends_its_body_is_answered(served: ServedSession):
    raw = await connected(served)
    raw.send(raw.head("/v1/messages", 1000) + b'{"model": ')
    await until(lambda: len(served.session.handlers) == 1)
    async with asyncio.timeout(30):
        await served.session.end()
        answer = await raw.until(b"ended")
    assert answer.startswith(b"HTTP/1.1 401")
    raw.cut()


async def test_a_client_that_does_not_read_is_disconnected(
    served: ServedSession, stepped: Stepped, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(session_module, "END_SECONDS", 0.3)
    raw = await connected(served)
    raw.post("/v1/chat/completions", asked("/v1/chat/completions", stream=True))
    raw.reader._transport.pause_reading()
    step = await stepped.call()
    for _ in range(300):
        say(step, "x" * 65536)
    await asyncio.sleep(0.3)
    async with asyncio.timeout(30):
        await served.session.end()
    await until(lambda: not served.session.handlers)
    raw.cut()


async def test_ending_twice_is_ending_once(served: ServedSession):
    first, second = await asyncio.gather(served.session.end(), served.session.end())
    assert first == second == await served.session.end()
    trajectory = read_trajectory(first)
    assert trajectory.complete
    assert trajectory.closed is not None and trajectory.closed.exchanges == 0


async def test_a_cancelled_end_still_completes(served: ServedSession, stepped: Stepped):
    asking = served.asking()
    await stepped.call()
    ending = asyncio.create_task(served.session.end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert read_trajectory(await served.session.end()).complete
    assert (await asking)[0] == 401


async def test_an_upstream_that_ignores_cancellation_does_not_block_the_end(
    served: ServedSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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

    served.session._upstream = deaf = Deaf()
    asking = served.asking()
    await until(lambda: served.session.in_flight == 1)
    async with asyncio.timeout(30):
        await served.session.end()
        assert (await asking)[0] == 401
    assert "did not stop when cancelled" in caplog.text
    go.set()
    done(await deaf.call(), "too late")
    await until(lambda: not served.session._tasks)
    assert served.session.exchanges == 0


async def test_closing_the_gateway_ends_all_sessions(tmp_path, stepped: Stepped):
    async with serving(stepped, tmp_path) as served:
        others = [
            await served.gateway.open(tmp_path / str(number), blobs=tmp_path / "blobs")
            for number in range(3)
        ]
        asking = served.asking()
        await stepped.call()
        async with asyncio.timeout(30):
            await served.gateway.__aexit__(None, None, None)
        assert (await asking)[0] == 401
        for session in (served.session, *others):
            assert session.has_ended
            assert read_trajectory(await session.end()).complete
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", served.gateway.port)
        await served.gateway.__aenter__()


async def test_an_idle_connection_does_not_block_the_gateway(stepped: Stepped):
    async with Gateway(stepped) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started < 10
    writer.close()


async def test_nothing_is_left_running(tmp_path, stepped: Stepped):
    before = asyncio.all_tasks()
    async with serving(stepped, tmp_path) as served:
        for number in range(4):
            asking = served.asking(number=number, stream=number % 2 == 0)
            done(await stepped.call(number), "fine")
            await asking
        waiting = served.asking(number=9)
        await stepped.call(4)
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: asyncio.all_tasks() == before)
