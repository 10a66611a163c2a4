"""A client that disconnects at any point of a request cancels the upstream's call."""

import asyncio

import pytest
from gateway_parts import ENDPOINTS, ServedSession, Stepped, asked, done, say
from raw_http import Raw, connected

from plimsoll.gateway.sessions import session as session_module
from plimsoll.testing.waiting import until

every_path = pytest.mark.parametrize("path", ENDPOINTS)


async def _gone(served: ServedSession) -> None:
    """Wait until nothing of any request is left."""
    await until(lambda: not served.session.handlers and not served.session.in_flight)
    await until(lambda: not served.session._tasks)


async def _sent(served: ServedSession, path: str, **more) -> Raw:
    raw = await connected(served)
    raw.post(path, asked(path, **more))
    return raw


@every_path
@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_while_waiting_for_the_policy_cancels_the_call(
    served: ServedSession, stepped: Stepped, path: str, stream: bool
):
    raw = await _sent(served, path, stream=stream)
    step = await stepped.call()
    raw.cut()
    await until(lambda: step.cancelled)
    await _gone(served)
    trajectory = await served.read()
    assert trajectory.exchanges == []
    assert [trouble.what for trouble in trajectory.troubles] == ["cancelled"]


@every_path
async def test_a_disconnect_in_the_middle_of_a_stream_cancels_the_call(
    served: ServedSession, stepped: Stepped, path: str
):
    raw = await _sent(served, path, stream=True)
    step = await stepped.call()
    say(step, "one")
    await raw.until(b"one")
    raw.cut()
    await until(lambda: step.cancelled)
    await _gone(served)
    trajectory = await served.read()
    assert trajectory.exchanges == []
    assert [trouble.what for trouble in trajectory.troubles] == ["cancelled"]


async def test_a_disconnect_before_the_body_is_complete_calls_no_upstream(
    served: ServedSession, stepped: Stepped
):
    raw = await connected(served)
    raw.send(raw.head("/v1/messages", 1000) + b'{"model": "m"')
    await until(lambda: len(served.session.handlers) == 1)
    raw.cut()
    await _gone(served)
    assert stepped.calls == []
    assert (await served.read()).troubles == []


async def test_a_disconnect_after_the_last_piece_leaves_one_record(
    served: ServedSession, stepped: Stepped
):
    """The answer is complete and recorded then; whether it arrived is unknown."""
    raw = await _sent(served, "/v1/chat/completions", stream=True)
    step = await stepped.call()
    say(step, "one")
    await raw.until(b"one")
    done(step)
    raw.cut()
    await _gone(served)
    trajectory = await served.read()
    assert len(trajectory.exchanges) + len(trajectory.troubles) == 1


async def test_a_disconnect_of_a_client_that_does_not_read_cancels_the_call(
    served: ServedSession, stepped: Stepped
):
    """Backpressure: unread pieces are not buffered; the upstream waits."""
    raw = await _sent(served, "/v1/chat/completions", stream=True)
    raw.reader._transport.pause_reading()
    step = await stepped.call()
    for _ in range(300):
        say(step, "x" * 65536)
    await asyncio.sleep(0.5)
    assert step.queue.qsize() > 100
    raw.cut()
    await until(lambda: step.cancelled)
    await _gone(served)


async def test_a_client_that_never_reads_does_not_block_the_policy_forever(
    served: ServedSession, stepped: Stepped, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(session_module, "STALLED_CLIENT_SECONDS", 0.3)
    raw = await _sent(served, "/v1/chat/completions", stream=True)
    raw.reader._transport.pause_reading()
    step = await stepped.call()
    for _ in range(300):
        say(step, "x" * 65536)
    await until(lambda: step.cancelled)
    assert step.queue.qsize() > 100
    assert not served.session.in_flight
    assert served.session.silent_for == 0.0  # not a failure of the policy
    raw.cut()
    await _gone(served)
    assert [trouble.what for trouble in (await served.read()).troubles] == ["cancelled"]


async def test_a_disconnect_of_one_of_two_waiting_clients_does_not_cancel_the_call(
    served: ServedSession, stepped: Stepped
):
    raws = [await _sent(served, "/v1/messages", stream=True) for _ in range(2)]
    step = await stepped.call()
    await until(lambda: len(served.session.handlers) == 2)
    say(step, "one")
    for raw in raws:
        await raw.until(b"one")
    raws[0].cut()
    await until(lambda: len(served.session.handlers) == 1)
    assert not step.cancelled
    done(step, "two")
    await raws[1].until(b"message_stop")
    assert served.session.exchanges == 1


async def test_a_disconnect_in_the_middle_of_a_count_leaves_nothing(served: ServedSession):
    raw = await connected(served)
    raw.post("/v1/messages/count_tokens", asked("/v1/messages"))
    await until(lambda: len(served.session.handlers) == 1)
    raw.cut()
    await _gone(served)


async def test_many_disconnects_at_once_cancel_all_calls(served: ServedSession, stepped: Stepped):
    raws = [await _sent(served, "/v1/messages", number=n, stream=True) for n in range(16)]
    await until(lambda: len(stepped.calls) == 16)
    for step in stepped.calls[::2]:
        say(step, "one")
    for raw in raws:
        raw.cut()
    await _gone(served)
    assert all(step.over for step in stepped.calls)
    assert served.gateway.metrics.outcomes[("messages", "cancelled")] == 16
