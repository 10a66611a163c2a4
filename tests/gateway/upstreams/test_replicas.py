import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from upstream_parts import CALL, HELLO, ask, replicas, streamed, text_of, user

from plimsoll.core.stopwatch import Stopwatch
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.upstreams import replicas as replica_module
from plimsoll.gateway.upstreams.failures import UpstreamFailure
from plimsoll.gateway.upstreams.openai_server import Timeouts
from plimsoll.gateway.upstreams.protocol import CallContext
from plimsoll.gateway.upstreams.scripted.server import ScriptedServer, serve_script
from plimsoll.testing.waiting import until
from ports import held_port

SAYS = HELLO.turns[0].text


@pytest.fixture
async def servers():
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serve_script(HELLO)) for _ in range(3)]


async def test_a_session_stays_with_its_replica(servers: list[ScriptedServer]):
    async with replicas(*servers) as policy:
        for _ in range(10):
            await policy.answer(ask(), CallContext("one"))
            await streamed(policy, ask(), CallContext("two"))
    assert sorted(server.requests for server in servers) == [0, 10, 10]


async def test_new_sessions_go_to_the_least_loaded(servers: list[ScriptedServer]):
    async with replicas(*servers) as policy:
        servers[0].faults.extend(["hang"] * 5)
        busy = [asyncio.create_task(policy.answer(ask(), CallContext("busy"))) for _ in range(5)]
        await until(lambda: sum(server.requests for server in servers) == 5)
        for number in range(10):
            await policy.answer(ask(), CallContext(f"new-{number}"))
        assert sorted(server.requests for server in servers) == [5, 5, 5]
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        assert [state.in_flight for state in policy.replicas] == [0, 0, 0]


async def test_sessions_are_spread_evenly(servers: list[ScriptedServer]):
    async with replicas(*servers) as policy:
        await asyncio.gather(*(policy.answer(ask(), CallContext(f"s{n}")) for n in range(30)))
    assert [server.requests for server in servers] == [10, 10, 10]


@pytest.mark.parametrize(
    ("fault", "stream"),
    [("cut", False), *((fault, stream) for fault in ("drop", 429, 502, 503) for stream in (0, 1))],
)
async def test_undelivered_requests_are_answered_by_another_replica(servers, fault, stream):
    async with replicas(*servers) as policy:
        servers[0].faults.append(fault)
        if stream:
            assert text_of(await streamed(policy, ask())) == SAYS
        else:
            assert (await policy.answer(ask(), CALL)).message.text == SAYS
    assert sum(server.requests for server in servers) == 2


async def test_a_stream_is_not_retried_once_a_piece_was_delivered(servers):
    async with replicas(*servers) as policy:
        servers[0].faults.append("cut")
        came = []
        with pytest.raises(Refusal) as refusal:
            async with policy.stream(ask(), CALL) as pieces:
                async for chunks in pieces:
                    came.extend(chunks)
        assert refusal.value.kind == "upstream"
        assert came
    assert sum(server.requests for server in servers) == 1


@pytest.mark.parametrize("fault", [500, "garbage", "bad-call", 400, "hang"])
async def test_unsafe_failures_are_not_retried(servers, fault):
    timeouts = Timeouts(total=0.3) if fault == "hang" else None
    async with replicas(*servers, timeouts=timeouts) as policy:
        servers[0].faults.append(fault)
        with pytest.raises(Refusal):
            await policy.answer(ask(), CALL)
    assert sum(server.requests for server in servers) == 1


async def test_no_request_is_lost_when_a_replica_dies():
    async with serve_script(HELLO) as stays, AsyncExitStack() as stack:
        dies = await stack.enter_async_context(serve_script(HELLO))
        async with replicas(dies, stays) as policy:
            dies.faults.extend(["stall"] * 20)
            calls = [
                asyncio.create_task(policy.answer(ask(), CallContext(f"s{n}"))) for n in range(40)
            ]
            await until(lambda: dies.in_flight == 20)
            await stack.aclose()
            answers = await asyncio.gather(*calls)
            assert [answer.message.text for answer in answers] == [SAYS] * 40
            assert [state.up for state in policy.replicas] == [False, True]
            # Its sessions have moved, and new ones avoid it.
            before = stays.requests
            await asyncio.gather(*(policy.answer(ask(), CallContext(f"s{n}")) for n in range(40)))
            assert stays.requests == before + 40


async def test_a_replica_that_comes_back_is_used_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replica_module, "FIRST_COOLDOWN", 0.05)
    async with serve_script(HELLO) as stays, AsyncExitStack() as stack:
        dies = await stack.enter_async_context(serve_script(HELLO))
        port = int(dies.url.rsplit(":", 1)[1].removesuffix("/v1"))
        async with replicas(dies, stays) as policy:
            await stack.aclose()
            await policy.answer(ask(), CALL)
            assert [state.up for state in policy.replicas] == [False, True]
            async with serve_script(HELLO, port=port) as back:
                await until(lambda: policy.replicas[0].up)
                for number in range(4):
                    await policy.answer(ask(), CallContext(f"new-{number}"))
                assert back.requests == 2


async def test_requests_wait_for_a_replica_that_starts_late():
    with held_port() as port:
        async with replicas(f"http://127.0.0.1:{port}/v1") as policy:
            call = asyncio.create_task(policy.answer(ask(), CALL))
            await asyncio.sleep(0.1)
            async with serve_script(HELLO, port=port), asyncio.timeout(30):
                assert (await call).message.text == SAYS


async def test_the_wait_for_a_replica_is_bounded():
    with held_port() as port:
        async with replicas(f"http://127.0.0.1:{port}/v1", patience=0.3) as policy:
            began = time.monotonic()
            with pytest.raises(Refusal) as refusal:
                await policy.answer(ask(), CALL)
        assert refusal.value.kind == "busy"
        assert "cannot be reached" in refusal.value.message
        assert time.monotonic() - began < 20


async def test_the_wait_for_a_replica_stops_during_a_pause(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(replica_module, "CHECK_SECONDS", 0.02)
    clock = Stopwatch()
    with held_port() as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with replicas(url, patience=3.0, clock=clock) as upstream:
            clock.stop()
            asked = asyncio.create_task(upstream.answer(ask(), CALL))
            await until(lambda: not upstream.replicas[0].up)
            # The state after many checks, with a cooldown of minutes.
            upstream._replicas[0].not_before = asyncio.get_running_loop().time() + 600
            await asyncio.sleep(3.5)
            assert not asked.done()
            async with serve_script(HELLO, port=port):
                clock.start()
                assert (await asked).message.text == SAYS


async def test_replicas_that_went_down_while_idle_are_named_with_their_causes(monkeypatch):
    monkeypatch.setattr(replica_module, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(replica_module, "IDLE_CHECK_SECONDS", 0.0)
    with held_port() as port:
        gone = f"http://127.0.0.1:{port}/v1"
        async with serve_script(HELLO) as ill, replicas(gone, ill, patience=0.3) as policy:
            ill.healthy = False
            await until(lambda: not any(state.up for state in policy.replicas))
            with pytest.raises(Refusal) as refusal:
                await policy.answer(ask(), CALL)
        assert f"{gone} cannot be reached" in refusal.value.message
        assert f"{ill.url} answered 503" in refusal.value.message


async def test_retry_after_of_a_server_is_respected():
    async with serve_script(HELLO) as server, replicas(server) as policy:
        server.retry_after = "1"
        server.faults.append(429)
        began = time.monotonic()
        assert (await policy.answer(ask(), CALL)).message.text == SAYS
        assert time.monotonic() - began >= 1
        server.retry_after = "1000"
        server.faults.append(429)
        with pytest.raises(Refusal) as refusal:
            await policy.answer(ask(), CALL)
        assert refusal.value.kind == "busy"


async def test_tries_of_a_busy_server_are_bounded(monkeypatch):
    monkeypatch.setattr("plimsoll.gateway.upstreams.replicas.FIRST_BACKOFF", 0.001)
    async with serve_script(HELLO) as server, replicas(server) as policy:
        server.faults.extend([429] * 100)
        with pytest.raises(Refusal) as refusal:
            await policy.answer(ask(), CALL)
        assert refusal.value.kind == "busy"
        assert server.requests == 6


async def test_a_replica_is_cooled_down_after_failures_in_a_row(servers):
    async with replicas(*servers[:2]) as policy:
        servers[0].faults.extend([500] * 3)
        for number in range(3):
            with pytest.raises(Refusal):
                await policy.answer(ask(), CallContext(f"s{number}"))
        assert [state.up for state in policy.replicas] == [False, True]
        assert policy.replicas[0].failures == 3
        assert policy.replicas[0].cooled == 1
        assert (await policy.answer(ask(), CALL)).message.text == SAYS
        assert servers[1].requests == 1


@pytest.mark.parametrize("fault", [500, 404, "garbage"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_leaves_a_failing_replica_even_if_it_is_the_least_loaded(
    servers, fault, stream
):
    async with replicas(*servers[:2]) as policy:
        servers[1].faults.append("hang")
        await policy.answer(ask(), CallContext("first"))
        busy = asyncio.create_task(policy.answer(ask(), CallContext("busy")))
        await until(lambda: servers[1].requests == 1)
        servers[0].faults.append(fault)
        with pytest.raises(Refusal):
            await (streamed(policy, ask()) if stream else policy.answer(ask(), CALL))
        for _ in range(2):
            assert (await policy.answer(ask(), CALL)).message.text == SAYS
        assert [server.requests for server in servers[:2]] == [2, 3]
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


async def test_without_another_replica_a_session_stays_with_the_failing_one():
    async with serve_script(HELLO) as server, replicas(server) as policy:
        server.faults.append(500)
        with pytest.raises(Refusal):
            await policy.answer(ask(), CALL)
        assert (await policy.answer(ask(), CALL)).message.text == SAYS


def test_each_cooldown_is_longer_up_to_a_limit():
    cooled = replica_module.Replica(None)  # type: ignore[arg-type]
    times = []
    for _ in range(10):
        cooled.not_before = 0.0
        cooled.cool_down(100.0)
        times.append(cooled.not_before - 100.0)
    assert times == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]
    cooled.record_answer(200.0)
    cooled.cool_down(200.0)
    assert cooled.not_before == 201.0


async def test_a_healthy_replica_that_fails_all_requests_is_cooled_longer_each_time(
    servers, monkeypatch
):
    """A healthy `/health` resets nothing; an answer does."""
    monkeypatch.setattr(replica_module, "FIRST_COOLDOWN", 0.1)
    monkeypatch.setattr(replica_module, "CHECK_SECONDS", 0.01)
    server = servers[0]
    async with replicas(server) as policy:
        (replica,) = policy._replicas
        server.faults.extend([500] * 6)
        nexts = []
        for _ in range(6):
            with pytest.raises(Refusal):
                await policy.answer(ask(), CALL)
            nexts.append(replica._next_cooldown)
        assert nexts == [0.1, 0.1, 0.2, 0.4, 0.8, 1.6]
        assert policy.replicas[0].cooled == 4
        await policy.answer(ask(), CALL)
        server.faults.append(500)
        with pytest.raises(Refusal):
            await policy.answer(ask(), CALL)
        assert policy.replicas[0].up


def test_requests_that_fail_together_cool_a_replica_once():
    cooled = replica_module.Replica(None)  # type: ignore[arg-type]
    for _ in range(20):
        cooled.record_failure(
            UpstreamFailure("upstream", "it is cut", retryable=True, replica_fault=True), 100.0
        )
    assert cooled.not_before == 101.0


async def test_a_health_check_does_not_shorten_a_retry_after(servers, monkeypatch):
    monkeypatch.setattr(replica_module, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(replica_module, "IDLE_CHECK_SECONDS", 0.0)
    async with replicas(*servers[:2], patience=100) as policy:
        servers[0].retry_after = "30"
        servers[0].faults.append(429)
        for number in range(6):
            await policy.answer(ask(), CallContext(f"s{number}"))
            await asyncio.sleep(0.05)
    assert [server.requests for server in servers[:2]] == [1, 6]


async def test_a_bad_request_does_not_count_against_the_replica(servers):
    async with replicas(*servers[:1]) as policy:
        servers[0].faults.extend([400] * 5)
        for _ in range(5):
            with pytest.raises(Refusal):
                await policy.answer(ask(user("bad")), CALL)
        assert policy.replicas[0].up
        assert policy.replicas[0].failures == 0


async def test_closing_leaves_no_task_and_no_connection(servers):
    before = asyncio.all_tasks()
    async with replicas(*servers) as policy:
        await asyncio.gather(*(streamed(policy, ask(), CallContext(f"s{n}")) for n in range(9)))
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_request_that_waits_for_a_replica_can_be_cancelled():
    async with serve_script(HELLO) as server:
        pass
    async with replicas(server) as policy:
        call = asyncio.create_task(streamed(policy, ask()))
        await until(lambda: not policy.replicas[0].up)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
