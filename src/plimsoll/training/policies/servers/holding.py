"""A server that generates nothing for a while, and generates again whatever happens."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from plimsoll.core.errors import PolicyError
from plimsoll.core.waiting import to_the_end
from plimsoll.gateway.upstreams.failures import Failed

__all__ = ["held", "let_go"]

log = logging.getLogger(__name__)

TRIES = 3
BETWEEN_SECONDS = 0.5


@asynccontextmanager
async def held(
    pause: Callable[[], Awaitable[object]], resume: Callable[[], Awaitable[object]]
) -> AsyncGenerator[None]:
    """`resume` follows on an error and on a cancellation too, even one that comes while `pause`
    is waited for: the server may have heard it. It must be bounded by itself."""
    problem = ""
    try:
        await pause()
        yield
    finally:
        problem = await to_the_end(_resumed(resume))
    if problem:
        raise PolicyError(problem)


async def let_go(resume: Callable[[], Awaitable[object]]) -> None:
    """For a server that whoever was killed may have left paused."""
    problem = await _resumed(resume)
    if problem:
        raise PolicyError(problem)


async def _resumed(resume: Callable[[], Awaitable[object]]) -> str:
    """Why it could not be resumed; empty where it was."""
    problem = ""
    for _ in range(TRIES):
        try:
            await resume()
        except (Failed, PolicyError) as error:
            problem = f"{error}; it may still be paused"
            if not (isinstance(error, Failed) and error.again):
                break
            await asyncio.sleep(BETWEEN_SECONDS)
        else:
            return ""
    # Said here too: where another error is under way, this one is not the one to be raised.
    log.warning("%s", problem)
    return problem
