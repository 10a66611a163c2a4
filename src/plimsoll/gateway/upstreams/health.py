"""Asks replicas in the background whether they serve: those that are down, and those that idle."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from plimsoll.core.stopwatch import Stopwatch
from plimsoll.gateway.upstreams.replica import Replica

__all__ = ["watch"]

TICK = 0.5
IDLE = 15.0
"""A replica that nobody has heard of for so long is asked before a session needs it."""
WITHIN = 5.0

_log = logging.getLogger(__name__)


async def watch(replicas: Sequence[Replica], changed: Callable[[], None], clock: Stopwatch) -> None:
    """Runs until it is cancelled; calls `changed` when a replica comes back.

    A replica that seemed down in a pause for new weights, while the clock stood still, is checked
    again as soon as the pause is over.
    """
    was_paused = False
    while True:
        await asyncio.sleep(TICK)
        now = asyncio.get_running_loop().time()
        if was_paused and not clock.is_stopped:
            for replica in replicas:
                replica.warm()
        was_paused = clock.is_stopped
        due = [replica for replica in replicas if _is_due(replica, now)]
        if due:
            await asyncio.gather(*(_check(replica, changed) for replica in due))


def _is_due(replica: Replica, now: float) -> bool:
    if not replica.up:
        return now >= replica.not_before
    return replica.in_flight == 0 and now - replica.heard > IDLE


async def _check(replica: Replica, changed: Callable[[], None]) -> None:
    problem = await replica.server.problem(WITHIN)
    now = asyncio.get_running_loop().time()
    was_up = replica.up
    if problem:
        replica.unwell(problem, now)
        if was_up:
            _log.warning("a replica is down: %s", problem)
        return
    replica.well(now)
    if not was_up:
        _log.info("the policy at %s is up again", replica.server.url)
        changed()
