"""Layers on disk, each made once: one process at a time, and never half."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from plimsoll.core.errors import BuildError
from plimsoll.core.waiting import to_the_end
from plimsoll.sandboxes.local.home import Home
from plimsoll.sandboxes.locks import only_process

__all__ = ["Layers"]


class Layers:
    """The layers of a home, by key."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._jobs: dict[str, tuple[asyncio.Task[None], set[object]]] = {}
        """Layers being made: the work, and who waits for it."""

    async def ensure(self, key: str, make: Callable[[Path], Awaitable[None]]) -> None:
        """Have the layer `key`; `make` leaves it at the given path, whole or not at all.

        Calls at the same time share one making of it, and its failure. It goes on when one of
        them is cancelled, and ends with the last.
        """
        if (self._home.layers / key).is_dir():
            return
        if key not in self._jobs:
            self._jobs[key] = (asyncio.create_task(self._make(key, make)), set())
        job, waiting = self._jobs[key]
        me = object()
        waiting.add(me)
        try:
            await asyncio.wait([job])
        finally:
            waiting.discard(me)
            if not waiting:
                self._jobs.pop(key, None)
                if not job.done():
                    job.cancel()
                    await to_the_end(asyncio.wait([job]))
        job.result()

    async def _make(self, key: str, make: Callable[[Path], Awaitable[None]]) -> None:
        place = self._home.layers / key
        async with only_process(self._home.locks / key):
            if not place.is_dir():
                await make(place)
            if not place.is_dir():
                raise BuildError(f"layer {key} could not be put in {place.parent}")
