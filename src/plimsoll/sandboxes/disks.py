"""Whether the disk that a backend's sandboxes write to was full, and when.

What a full disk makes fail says nothing of an agent, so a trial asks for it before it trusts a
grade. Sandboxes of one backend share one disk: one look a second does for all of them, and
whoever asks a sandbox for its status has a look of its own.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path

from plimsoll.core.errors import NoRoom
from plimsoll.sandboxes.protocol import FullDisk

__all__ = ["Disk", "FolderDisk", "watching"]

log = logging.getLogger(__name__)

_LEAST = 8 << 20
"""With less than this free it is full: what fails of it, as a rule, wanted more."""
_PERIOD = 1.0


class Disk:
    """One disk. `describe` says which it is and what to do, given how much was left of it."""

    def __init__(self, describe: Callable[[str], str]) -> None:
        self._describe = describe
        self.full: FullDisk | None = None
        """When it was last found full, if it ever was."""
        self._tells = False
        """Whether it ever said that something is free. There are file systems that never do."""

    def note(self, free: int | None) -> None:
        """So many bytes are free now; None where nobody knows."""
        self._tells = self._tells or bool(free)
        if free is not None and free < _LEAST and self._tells:
            left = f"{free / 1e6:.1f} MB were left when it was looked at"
            self.full = FullDisk(time.monotonic(), self._describe(left))

    @contextlib.contextmanager
    def named(self) -> Generator[None]:
        """Around what carries something to this disk: where it has no room, it is named."""
        try:
            yield
        except NoRoom as error:
            raise NoRoom(self._describe(str(error))) from None


class FolderDisk(Disk):
    """The disk that a folder of this host is on."""

    def __init__(self, folder: Path, describe: Callable[[str], str]) -> None:
        super().__init__(describe)
        self._folder = folder

    def look(self) -> FullDisk | None:
        """Look at it now; when it was last found full."""
        with contextlib.suppress(OSError):
            self.note(_free_bytes(os.statvfs(self._folder)))
        return self.full


def _free_bytes(found: os.statvfs_result) -> int | None:
    """What may still be written; nothing where there is no room for one more file."""
    if not found.f_blocks:
        return None
    return 0 if found.f_files and not found.f_favail else found.f_bavail * found.f_frsize


@contextlib.asynccontextmanager
async def watching(
    look: Callable[[], Awaitable[None]], *, every: float = _PERIOD
) -> AsyncGenerator[None]:
    """Has a disk looked at every second meanwhile. What goes wrong in it ends no run."""
    task = asyncio.create_task(_go_on(look, every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _go_on(look: Callable[[], Awaitable[None]], every: float) -> None:
    failed = False
    while True:
        try:
            await look()
            failed = False
        except Exception as error:  # noqa: BLE001 - a look that failed is made again
            if not failed:
                log.warning("the disk under the sandboxes cannot be looked at: %s", error)
            failed = True
        await asyncio.sleep(every)
