"""The budget for unfinished bodies."""

import asyncio

from gateway_parts import eventually

from plimsoll.gateway.sessions.handlers import BodyBudget


async def test_the_budget_is_granted_in_order_of_arrival():
    intake, came = BodyBudget(10), []

    async def come(name: str, size: int, leave: asyncio.Event) -> None:
        async with intake.reserve(size):
            came.append(name)
            await leave.wait()

    leave = [asyncio.Event() for _ in range(4)]
    sizes = [("large", 8), ("larger", 9), ("small", 1), ("huge", 1000)]
    tasks = []
    for (name, size), event in zip(sizes, leave, strict=True):
        tasks.append(asyncio.create_task(come(name, size, event)))
        await asyncio.sleep(0)
    assert came == ["large"]  # otherwise small ones would starve the larger one
    leave[0].set()
    await eventually(lambda: came == ["large", "larger", "small"])
    leave[1].set()
    await eventually(lambda: tasks[1].done())
    assert came == ["large", "larger", "small"] and intake.used == 1
    leave[2].set()
    leave[3].set()
    await asyncio.gather(*tasks)
    assert came[-1] == "huge" and intake.used == 0


async def test_a_cancelled_waiter_leaves_nothing_behind():
    intake = BodyBudget(10)

    async def come(size: int) -> None:
        async with intake.reserve(size):
            await asyncio.Event().wait()

    first, second, third = (asyncio.create_task(come(size)) for size in (6, 6, 4))
    await asyncio.sleep(0.01)
    assert intake.used == 6
    second.cancel()
    await eventually(lambda: intake.used == 10)  # the third fits into the remaining budget
    first.cancel()
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert intake.used == 0


async def test_a_waiter_cancelled_as_it_is_granted_leaves_nothing_behind():
    intake = BodyBudget(10)
    leave = asyncio.Event()

    async def come() -> None:
        async with intake.reserve(10):
            await leave.wait()

    first, second = asyncio.create_task(come()), asyncio.create_task(come())
    await asyncio.sleep(0.01)
    leave.set()
    await first
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert intake.used == 0
