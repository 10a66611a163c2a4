"""The stopwatch: its timers and time limits pause with it."""

import asyncio
import time

import pytest

from plimsoll.core.stopwatch import Stopwatch

LONG = 60.0


async def test_running_and_stopped_seconds_are_counted_separately():
    began, watch = time.monotonic(), Stopwatch()
    watch.stop()
    ran = watch.seconds
    await asyncio.sleep(0.1)
    watch.stop()
    assert watch.seconds == ran
    watch.start()
    watch.start()
    assert watch.stopped_seconds >= 0.1
    assert watch.seconds + watch.stopped_seconds <= time.monotonic() - began + 1e-6


async def test_a_timer_pauses_with_its_stopwatch():
    watch, rang = Stopwatch(), asyncio.Event()
    watch.call_later(0.05, rang.set)
    watch.stop()
    await asyncio.sleep(0.2)
    assert not rang.is_set()
    watch.start()
    await asyncio.wait_for(rang.wait(), LONG)
    cancelled = asyncio.Event()
    watch.call_later(0.01, cancelled.set).cancel()
    await asyncio.sleep(0.05)
    assert not cancelled.is_set()


async def test_a_stop_timer_restarts_with_each_stop():
    watch, rang = Stopwatch(), asyncio.Event()
    timer = watch.call_when_stopped(LONG, rang.set)
    for _ in range(3):
        watch.stop()
        assert timer._handle is not None
        assert timer._handle.when() - asyncio.get_running_loop().time() > LONG - 1
        watch.start()
        assert timer._handle is None


async def test_a_time_limit_pauses_with_its_stopwatch():
    watch = Stopwatch()
    async with watch.limit(0.1, stopped=LONG):
        watch.stop()
        await asyncio.sleep(0.3)
    watch.start()
    limit = watch.limit(0.05, stopped=LONG)
    with pytest.raises(TimeoutError):
        async with limit:
            await asyncio.sleep(LONG)
    assert limit.expired() and not limit.overdue
    async with watch.limit(None, stopped=LONG):
        pass


async def test_an_endless_stop_ends_the_time_limit():
    watch = Stopwatch()
    watch.stop()
    limit = watch.limit(LONG, stopped=0.05)
    with pytest.raises(TimeoutError):
        async with limit:
            await asyncio.sleep(LONG)
    assert limit.expired() and limit.overdue
