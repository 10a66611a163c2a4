"""The budget for unfinished bodies."""

import asyncio

from plimsoll.gateway.sessions.handlers import BodyBudget
from plimsoll.testing.waiting import until


async def test_the_budget_is_granted_in_order_of_arrival():
    budget, admitted = BodyBudget(10), []

    async def take_budget(name: str, size: int, leave: asyncio.Event) -> None:
        async with budget.reserve(size):
            admitted.append(name)
            await leave.wait()

    leave = [asyncio.Event() for _ in range(4)]
    sizes = [("large", 8), ("larger", 9), ("small", 1), ("huge", 1000)]
    tasks = []
    for (name, size), event in zip(sizes, leave, strict=True):
        tasks.append(asyncio.create_task(take_budget(name, size, event)))
        await asyncio.sleep(0)
    assert admitted == ["large"]  # otherwise small ones would starve the larger one
    leave[0].set()
    await until(lambda: admitted == ["large", "larger", "small"])
    leave[1].set()
    await until(lambda: tasks[1].done())
    assert admitted == ["large", "larger", "small"] and budget.used == 1
    leave[2].set()
    leave[3].set()
    await asyncio.gather(*tasks)
    assert admitted[-1] == "huge" and budget.used == 0


async def test_a_cancelled_waiter_leaves_nothing_behind():
    budget = BodyBudget(10)

    async def take_budget(size: int) -> None:
        async with budget.reserve(size):
            await asyncio.Event().wait()

    first, second, third = (asyncio.create_task(take_budget(size)) for size in (6, 6, 4))
    await asyncio.sleep(0.01)
    assert budget.used == 6
    second.cancel()
    await until(lambda: budget.used == 10)  # the third fits into the remaining budget
    first.cancel()
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert budget.used == 0


async def test_a_waiter_cancelled_as_it_is_granted_leaves_nothing_behind():
    budget = BodyBudget(10)
    leave = asyncio.Event()

    async def take_budget() -> None:
        async with budget.reserve(10):
            await leave.wait()

    first, second = asyncio.create_task(take_budget()), asyncio.create_task(take_budget())
    await asyncio.sleep(0.01)
    leave.set()
    await first
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert budget.used == 0
