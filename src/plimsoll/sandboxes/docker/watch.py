"""Notices an engine that hangs. One that ends is noticed by itself: its streams end."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from plimsoll.core.errors import SandboxError
from plimsoll.sandboxes.docker.engine import Engine

__all__ = ["watch"]

log = logging.getLogger(__name__)

_EVERY = 5.0
_ANSWER_SECONDS = 10.0
_TIMES = 3


async def watch(engine: Engine, on_hang: Callable[[str], Awaitable[None]]) -> None:
    """Ask the engine now and then whether it lives, for ever; tell when it does not for long."""
    missed = 0
    while True:
        await asyncio.sleep(_EVERY)
        try:
            await engine.call("GET", "/_ping", "answer", seconds=_ANSWER_SECONDS)
            missed = 0
        except SandboxError as error:
            missed += 1
            log.info("%s (%d of %d)", error, missed, _TIMES)
            if missed == _TIMES:
                with contextlib.suppress(SandboxError):
                    await on_hang(f"{error}; asked {_TIMES} times")
                missed = 0
