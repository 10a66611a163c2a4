"""Publication of weights to several servers at once."""

import asyncio
from collections.abc import Sequence

from plimsoll.core.errors import PolicyError
from plimsoll.gateway.upstreams.failures import UpstreamFailure
from plimsoll.training.policies.remote.protocol import Target, WeightServer

__all__ = ["find_deviations", "push_weights"]

RETRY_SECONDS = 1.0


async def push_weights(
    servers: Sequence[WeightServer], target: Target, *, within: float, had: Target | None = None
) -> dict[str, str]:
    """Load the target on all servers. Returns the problems by URL.

    Servers that still have `had`, the same weights under another label, only get the new label.
    Each server generates again as soon as it is done: none waits for the slowest.
    """
    async with asyncio.TaskGroup() as group:
        tasks = {s.url: group.create_task(_push(s, target, had, within)) for s in servers}
    return {url: problem for url, task in tasks.items() if (problem := task.result())}


async def find_deviations(
    servers: Sequence[WeightServer], target: Target
) -> dict[WeightServer, str]:
    """Servers that report deviation weights than the target, with what they report.

    Unreachable servers are not among them: they do not generate either.
    """
    async with asyncio.TaskGroup() as group:
        tasks = {server: group.create_task(_deviation(server, target)) for server in servers}
    return {server: deviation for server, task in tasks.items() if (deviation := task.result())}


async def _push(server: WeightServer, target: Target, had: Target | None, within: float) -> str:
    problem = ""
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    # Ask first: an unreachable server need not be paused and resumed.
                    same = await server.deviation(had or target) is None and had is not None
                    await server.load(Target(target.label) if same else target)
                except UpstreamFailure as failure:
                    problem = failure.message
                    if not failure.retryable:
                        return problem
                except PolicyError as error:
                    return str(error)
                else:
                    return ""
                # The server may be restarting: repeat everything.
                await asyncio.sleep(RETRY_SECONDS)
    except TimeoutError:
        what = f"the policy at {server.url} did not load them within {within:g} s"
        return f"{what}; {problem}" if problem else f"{what}, at {server.stuck}"


async def _deviation(server: WeightServer, target: Target) -> str | None:
    try:
        return await server.deviation(target)
    except UpstreamFailure:
        return None
    except PolicyError as error:
        return str(error)
