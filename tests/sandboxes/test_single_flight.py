"""Single flight: concurrent callers share one execution, its output and its failure."""

import asyncio

import pytest

from plimsoll.sandboxes.protocol import OnOutput
from plimsoll.sandboxes.single_flight import SingleFlight


async def test_concurrent_callers_share_one_execution_and_all_of_its_output():
    flights, starts = SingleFlight[int](), 0
    go_on = asyncio.Event()

    async def work(emit: OnOutput) -> int:
        nonlocal starts
        starts += 1
        emit("stdout", b"first ")
        await go_on.wait()
        emit("stdout", b"last")
        return starts

    outputs: list[list[bytes]] = [[], []]
    calls: list[asyncio.Task[int]] = []
    for output in outputs:
        call = flights.run("a", work, lambda _, data, output=output: output.append(data))
        calls.append(asyncio.create_task(call))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(*calls) == [1, 1]
    assert outputs == [[b"first ", b"last"]] * 2
    assert await flights.run("a", work) == 2


async def test_a_failure_reaches_every_caller_and_the_next_call_tries_again():
    flights, errors = SingleFlight[str](), [ValueError("once")]

    async def work(_: OnOutput) -> str:
        await asyncio.sleep(0)
        if errors:
            raise errors.pop()
        return "done"

    ends = await asyncio.gather(*(flights.run("a", work) for _ in range(2)), return_exceptions=True)
    assert [str(end) for end in ends] == ["once", "once"]
    assert await flights.run("a", work) == "done"


async def test_the_work_ends_with_its_last_caller():
    flights, cancelled = SingleFlight[None](), asyncio.Event()

    async def work(_: OnOutput) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()

    first, last = (asyncio.create_task(flights.run("a", work)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait([first])
    assert not cancelled.is_set()
    last.cancel()
    await asyncio.wait([last])
    assert cancelled.is_set()


async def test_work_started_while_cancelled_work_ends_is_shared_too():
    flights, starts = SingleFlight[None](), 0
    ending, ended = asyncio.Event(), asyncio.Event()

    async def slow_to_end(_: OnOutput) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ending.set()
            await ended.wait()

    go_on = asyncio.Event()

    async def work(_: OnOutput) -> None:
        nonlocal starts
        starts += 1
        await go_on.wait()

    given_up = asyncio.create_task(flights.run("a", slow_to_end))
    await asyncio.sleep(0.01)
    given_up.cancel()
    await ending.wait()
    calls = [asyncio.create_task(flights.run("a", work))]
    await asyncio.sleep(0.01)
    ended.set()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    calls.append(asyncio.create_task(flights.run("a", work)))
    await asyncio.sleep(0.01)
    go_on.set()
    await asyncio.gather(*calls)
    assert starts == 1
