"""Layers on disk, each made once: one process at a time, and never half."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.local.home import Home

__all__ = ["Layers"]

_LOCK_PAUSE = 0.05


class Layers:
    """The layers of a home, by key."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._making: dict[str, asyncio.Lock] = {}

    async def ensure(self, key: str, make: Callable[[Path], Awaitable[None]]) -> None:
        """Have the layer `key`; `make` leaves it at the given path, whole or not at all."""
        place = self._home.layers / key
        if place.is_dir():
            return
        lock = self._making.setdefault(key, asyncio.Lock())
        try:
            async with lock, self._only_process(key):
                if place.is_dir():
                    return
                await make(place)
                if not place.is_dir():
                    raise BuildError(f"layer {key} could not be put in {place.parent}")
        finally:
            if not lock.locked():
                self._making.pop(key, None)

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
