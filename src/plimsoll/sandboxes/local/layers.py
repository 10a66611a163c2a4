"""Layers on disk, each made once: one process at a time, and never half."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from plimsoll.core.errors import BuildError
from plimsoll.core.waiting import to_the_end
from plimsoll.sandboxes.local.home import Home

__all__ = ["Layers"]

_LOCK_PAUSE = 0.05


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
        async with self._only_process(key):
            if not place.is_dir():
                await make(place)
            if not place.is_dir():
                raise BuildError(f"layer {key} could not be put in {place.parent}")

    @contextlib.asynccontextmanager
    async def _only_process(self, key: str) -> AsyncGenerator[None]:
        descriptor = os.open(self._home.locks / key, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_LOCK_PAUSE)
            yield
        finally:
            os.close(descriptor)
