"""`plimsoll.testing` as users of the package import it."""

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest

import plimsoll
from plimsoll.testing.clocks import FakeClock
from plimsoll.testing.scripted import Script, Turn, serve_script
from plimsoll.testing.waiting import until
from plimsoll.testing.workers import IdleWorker


def test_no_other_package_imports_it():
    source = Path(plimsoll.__file__).parent
    others = (path for path in source.rglob("*.py") if "testing" not in path.parts)
    assert [path for path in others if "plimsoll.testing" in path.read_text()] == []


def test_a_fake_clock_moves_only_when_it_is_advanced():
    clock = FakeClock(10.0)
    assert (clock(), clock()) == (10.0, 10.0)
    clock.advance(2.5)
    assert clock() == 12.5
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


async def test_a_scripted_server_answers_chat_completions():
    async with serve_script(Script(turns=(Turn(text="done"),))) as server:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "Do it."}]}
        request = urllib.request.Request(
            f"{server.url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        response = await asyncio.to_thread(urllib.request.urlopen, request)
        with response:
            answer = json.load(response)
    assert answer["choices"][0]["message"]["content"] == "done"


async def test_waiting_ends_with_the_condition_or_with_an_error():
    seen = [1, 2, 3]
    await until(lambda: seen.pop() == 1)
    with pytest.raises(AssertionError, match="in time"):
        await until(lambda: False, 0.02)


async def test_an_idle_worker_ends_when_it_is_killed():
    worker = IdleWorker()
    ended = asyncio.create_task(worker.ended())
    await asyncio.sleep(0)
    assert not ended.done()
    await worker.kill()
    assert (await ended).killed
