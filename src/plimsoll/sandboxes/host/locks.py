"""Locks between the processes of this host. The kernel lets go of those of one that died."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

__all__ = ["process_lock", "remove_stale_locks"]

_PAUSE = 0.05


@contextlib.asynccontextmanager
async def process_lock(
    file: Path, on_wait: Callable[[], None] | None = None
) -> AsyncGenerator[bool, None]:
    """Hold a file's lock, made if it is not there; True where another held it until just now.

    `on_wait` is called once where it has to be waited for.
    """
    waited = False
    while True:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            while not _locks(descriptor):
                if not waited and on_wait is not None:
                    on_wait()
                waited = True
                await asyncio.sleep(_PAUSE)
            if _stands_at(descriptor, file):
                yield waited
                return
        finally:
            os.close(descriptor)


def remove_stale_locks(folder: Path) -> None:
    """Remove the files of a folder whose lock nobody holds: a process that died leaves its own.

    One that waits for such a lock finds that its file is another by now, and begins again.
    """
    with contextlib.suppress(OSError):  # what cannot be removed is no reason not to work
        for file in folder.iterdir():
            with contextlib.suppress(OSError):
                descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if _locks(descriptor) and _stands_at(descriptor, file):
                        file.unlink()
                finally:
                    os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stands_at(descriptor: int, file: Path) -> bool:
    """Whether an open file is the one of this name."""
    mine = os.fstat(descriptor)
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (found.st_dev, found.st_ino)
