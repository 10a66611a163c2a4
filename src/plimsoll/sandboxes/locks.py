"""Locks between the processes of this host. The kernel lets go of those of one that died."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

__all__ = ["only_process"]

_PAUSE = 0.05


@contextlib.asynccontextmanager
async def only_process(
    file: Path, on_wait: Callable[[], None] | None = None
) -> AsyncGenerator[bool, None]:
    """Hold a file's lock, made if it is not there; True where another held it until just now.

    `on_wait` is called once where it has to be waited for.
    """
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    waited = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waited and on_wait is not None:
                    on_wait()
                waited = True
                await asyncio.sleep(_PAUSE)
        yield waited
    finally:
        os.close(descriptor)
