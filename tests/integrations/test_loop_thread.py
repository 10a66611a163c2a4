"""An event loop in a thread leaves nothing behind."""

import asyncio
import threading

import pytest

from plimsoll.integrations.trl import LoopThread


def test_results_and_exceptions_of_a_coroutine_reach_the_caller():
    async def half(number: int) -> float:
        await asyncio.sleep(0)
        return number / 2

    async def fails() -> None:
        raise ValueError("no")

    with LoopThread("test-loop") as loop:
        assert loop.run(half(3)) == 1.5
        with pytest.raises(ValueError, match="no"):
            loop.run(fails())


def test_closing_the_loop_cancels_running_coroutines_and_ends_its_thread():
    ended = []

    async def start() -> "asyncio.Task[None]":
        async def stay() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(True)

        made = asyncio.create_task(stay())
        await asyncio.sleep(0)
        return made

    with LoopThread("test-loop") as loop:
        task = loop.run(start())
    assert ended == [True] and task.cancelled()
    assert "test-loop" not in {thread.name for thread in threading.enumerate()}
