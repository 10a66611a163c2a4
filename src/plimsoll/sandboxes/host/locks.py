"""File locks between processes of this host. The kernel releases those of a dead process."""

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
    """Hold the lock of a file, which is created if missing. Yields whether it had to wait.

    `on_wait` is called once if another process holds the lock.
    """
    waited = False
    while True:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            while not _try_lock(descriptor):
                if not waited and on_wait is not None:
                    on_wait()
                waited = True
                await asyncio.sleep(_PAUSE)
            if _is_file_at(descriptor, file):
                yield waited
                return
        finally:
            os.close(descriptor)


def remove_stale_locks(folder: Path) -> None:
    """Remove the lock files of dead processes: files in a folder whose lock nobody holds.

    A process that waits for such a lock notices that its file was removed, and starts again.
    """
    with contextlib.suppress(OSError):  # a leftover file does no harm
        for file in folder.iterdir():
            with contextlib.suppress(OSError):
                descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if _try_lock(descriptor) and _is_file_at(descriptor, file):
                        file.unlink()
                finally:
                    os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file_at(descriptor: int, file: Path) -> bool:
    """Whether a descriptor still refers to the file at this path."""
    own = os.fstat(descriptor)
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)
