"""The dedicated thread of the learner."""

import asyncio
import threading

import pytest

from plimsoll.training.dedicated_thread import DedicatedThread


async def test_all_calls_run_in_one_thread_and_their_exceptions_are_raised():
    own = DedicatedThread("test")
    threads = [await own.do(threading.get_ident) for _ in range(3)]
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await own.do(lambda: 1 / 0)
    assert await own.do(max, 1, 2) == 2
    own.close()


async def test_a_cancelled_call_still_counts_as_running():
    own, go, began = DedicatedThread("test"), threading.Event(), threading.Event()

    def work() -> bool:
        began.set()
        return go.wait(10)

    task = asyncio.create_task(own.do(work))
    await asyncio.to_thread(began.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert own.busy
    go.set()
    assert await own.do(lambda: 7) == 7
    own.close()
