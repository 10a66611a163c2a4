import asyncio

import pytest
from upstream_parts import CALL, HELLO, ask, replicas, streamed, text_of

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.upstreams.gate import Gate
from plimsoll.gateway.upstreams.protocol import CallContext, Upstream
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.gateway.upstreams.scripted.server import serve_script
from plimsoll.testing.waiting import until

SAYS = HELLO.turns[0].text


async def test_a_pause_holds_requests_and_loses_none():
    async with serve_script(HELLO) as server, replicas(server) as source:
        gate = Gate(source)
        await gate.pause()
        calls = [
            asyncio.create_task(
                streamed(gate, ask(), CallContext(f"s{n}"))
                if n % 2
                else gate.answer(ask(), CallContext(f"s{n}"))
            )
            for n in range(100)
        ]
        await until(lambda: gate.held == 100)
        assert server.requests == 0
        gate.resume(Version(0, 1))
        answers = await asyncio.gather(*calls)
        texts = [text_of(a) if isinstance(a, list) else a.message.text for a in answers]
        assert texts == [SAYS] * 100
        assert (server.requests, gate.held, gate.in_flight) == (100, 0, 0)


async def test_the_version_changes_when_it_resumes_and_not_before():
    gate: Upstream = Gate(ScriptedPolicy(HELLO))
    assert isinstance(gate, Gate)
    assert gate.version == FIRST_VERSION
    await gate.pause()
    assert gate.version == FIRST_VERSION and gate.paused
    gate.resume(Version(0, 7))
    assert gate.version == Version(0, 7) and not gate.paused
    gate.resume()
    assert gate.version == Version(0, 7)


async def test_draining_waits_for_requests_in_flight():
    gate = Gate(ScriptedPolicy(Script(turns=(Turn(text="late", delay=0.2),))))
    call = asyncio.create_task(gate.answer(ask(), CALL))
    await until(lambda: gate.in_flight == 1)
    await gate.pause(drain=True)
    assert call.done() and gate.in_flight == 0
    late = asyncio.create_task(gate.answer(ask(), CALL))
    await asyncio.sleep(0.02)
    assert not late.done()
    gate.resume()
    assert (await late).message.text == "late"


async def test_a_cancelled_drain_reopens_the_gate():
    gate = Gate(ScriptedPolicy(Script(turns=(Turn(text="x", failure="hang"),))))
    call = asyncio.create_task(gate.answer(ask(), CALL))
    await until(lambda: gate.in_flight == 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await gate.pause(drain=True)
    assert not gate.paused
    call.cancel()


async def test_a_held_request_can_be_cancelled():
    gate = Gate(ScriptedPolicy(HELLO))
    await gate.pause()
    call = asyncio.create_task(gate.answer(ask(), CALL))
    await until(lambda: gate.held == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (gate.held, gate.in_flight) == (0, 0)


async def test_a_gate_that_closes_again_at_once_passes_no_request():
    gate = Gate(ScriptedPolicy(HELLO))
    await gate.pause()
    call = asyncio.create_task(gate.answer(ask(), CALL))
    await until(lambda: gate.held == 1)
    gate.resume()
    await gate.pause()
    await asyncio.sleep(0.02)
    assert not call.done() and gate.held == 1
    gate.resume()
    await call
