"""Gives weights to several servers at once."""

import asyncio
from collections.abc import Sequence

from plimsoll.core.errors import PolicyError
from plimsoll.gateway.upstreams.failures import UpstreamFailure
from plimsoll.training.policies.remote.protocol import Target, WeightServer

__all__ = ["find_deviations", "push_weights"]

AGAIN_SECONDS = 1.0


async def push_weights(
    servers: Sequence[WeightServer], target: Target, *, within: float, had: Target | None = None
) -> dict[str, str]:
    """Why each that does not serve the target in time does not, by its URL.

    Those that still serve `had`, whose weights are the same, are only told the new name. Each
    goes on generating as soon as it is done itself: none waits for the slowest.
    """
    async with asyncio.TaskGroup() as group:
        tasks = {s.url: group.create_task(_give(s, target, had, within)) for s in servers}
    return {url: problem for url, task in tasks.items() if (problem := task.result())}


async def find_deviations(
    servers: Sequence[WeightServer], target: Target
) -> dict[WeightServer, str]:
    """What each that serves something else says that it does.

    One that cannot be asked is none of them: whoever generates with it cannot ask it either.
    """
    async with asyncio.TaskGroup() as group:
        tasks = {server: group.create_task(_other(server, target)) for server in servers}
    return {server: other for server, task in tasks.items() if (other := task.result())}


async def _give(server: WeightServer, target: Target, had: Target | None, within: float) -> str:
    problem = ""
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    # Asked first in any case: one that is away need not be paused and resumed.
                    same = await server.other(had or target) is None and had is not None
                    await server.take(Target(target.label) if same else target)
                except UpstreamFailure as failure:
                    problem = failure.message
                    if not failure.again:
                        return problem
                except PolicyError as error:
                    return str(error)
                else:
                    return ""
                # It may be on its way back: all of it is done again then.
                await asyncio.sleep(AGAIN_SECONDS)
    except TimeoutError:
        what = f"the policy at {server.url} did not take them within {within:g} s"
        return f"{what}; {problem}" if problem else f"{what}, at {server.stuck}"


async def _other(server: WeightServer, target: Target) -> str | None:
    try:
        return await server.other(target)
    except UpstreamFailure:
        return None
    except PolicyError as error:
        return str(error)
