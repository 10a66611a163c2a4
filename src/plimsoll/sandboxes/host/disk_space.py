"""Whether the disk that a backend's sandboxes write to was full, and when.

What a full disk makes fail says nothing of an agent, so a trial asks for it before it trusts a
grade. Sandboxes of one backend share one disk: one look a second does for all of them, and
whoever asks a sandbox for its status has a look of its own.

File systems may keep a part for root. Sandboxes write through an overlay, and so as who mounted
it, whatever user they have inside: where that is root, the disk is full when that part is, too.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import NoRoom
from plimsoll.sandboxes.protocol import FullDisk

__all__ = ["Disk", "DiskSpace", "FolderDisk", "OpenDisk", "watch_disk"]

log = logging.getLogger(__name__)

_LEAST = 8 << 20
"""With less than this free it is full: what fails of it, as a rule, wanted more."""
_SHORT_PART, _SHORT_MOST = 20, 2 << 30
"""With less than a twentieth free, and less than this, it is short of room."""
_PERIOD = 1.0
_NOBODYS_PART, _NOBODYS_MOST = 50, 256 << 20
"""Of what ext4 tells to be free, it gives a fiftieth of the disk to nobody, and no more than this
even with the largest blocks that are usual."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """What a file system says of itself: bytes, and how many more files it takes."""

    size: int
    free: int
    """With what is kept for root."""
    available: int
    files: int | None = None
    """None where it does not count them."""
    as_root: bool = False
    """Whether the sandboxes write as root."""

    @property
    def left(self) -> int:
        """What sandboxes may still write at least."""
        # One that counts no files, as btrfs, keeps nothing for root: it needs the rest itself.
        if not self.as_root or self.files is None:
            return self.available
        nobodys = min(self.size // _NOBODYS_PART, _NOBODYS_MOST)
        return max(self.available, self.free - nobodys)


class Disk:
    """One disk. `describe` says which it is and what to do, given how much was left of it."""

    def __init__(self, describe: Callable[[str], str]) -> None:
        self._describe = describe
        self.full: FullDisk | None = None
        """When it was last found full, if it ever was."""
        self.short = False
        """Whether little room was left when it was last looked at."""
        self._tells_bytes = self._tells_files = False
        """Whether it ever said that some are free. There are file systems that never do."""

    def note(self, space: DiskSpace) -> None:
        """It is like this now."""
        self._tells_bytes |= space.free > 0
        self._tells_files |= bool(space.files)
        few = max(_LEAST, min(space.size // _SHORT_PART, _SHORT_MOST))
        self.short = self._tells_bytes and space.left < few
        if self._tells_files and space.files == 0:
            self._found_full("no room for one more file was left")
        elif self._tells_bytes and space.left < _LEAST:
            self._found_full(f"{max(space.left, 0) / 1e6:.1f} MB were left")

    def _found_full(self, left: str) -> None:
        why = self._describe(f"{left} when it was looked at")
        self.full = FullDisk(time.monotonic(), why)

    @contextlib.contextmanager
    def named(self) -> Generator[None]:
        """Around what carries something to this disk: where it has no room, it is named."""
        try:
            yield
        except NoRoom as error:
            raise NoRoom(self._describe(str(error)), named=True) from None


class FolderDisk(Disk):
    """The disk that a folder of this host is on. `as_root`: whether sandboxes write as root."""

    def __init__(
        self, folder: Path, describe: Callable[[str], str], *, as_root: bool = False
    ) -> None:
        super().__init__(describe)
        self._folder = folder
        self._as_root = as_root

    def look(self) -> FullDisk | None:
        """Look at it now; when it was last found full."""
        with contextlib.suppress(OSError):
            found = os.statvfs(self._folder)
            if found.f_blocks:
                self.note(_space(found, as_root=self._as_root))
        return self.full


class OpenDisk(Disk):
    """A disk known by an open file of it, which this owns; `on_full` is called when it is full."""

    def __init__(
        self, descriptor: int, describe: Callable[[str], str], on_full: Callable[[], None]
    ) -> None:
        super().__init__(describe)
        self._descriptor: int | None = descriptor
        self._on_full = on_full
        self.look()

    def look(self) -> FullDisk | None:
        if self._descriptor is not None:
            self.note(_space(os.statvfs(self._descriptor), as_root=False))
        return self.full

    def _found_full(self, left: str) -> None:
        super()._found_full(left)
        self._on_full()

    def close(self) -> None:
        """Let go of it; from then on it is as it was last seen."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _space(found: os.statvfs_result, *, as_root: bool) -> DiskSpace:
    block = found.f_frsize
    return DiskSpace(
        found.f_blocks * block,
        found.f_bfree * block,
        found.f_bavail * block,
        found.f_favail if found.f_files else None,
        as_root=as_root,
    )


@contextlib.asynccontextmanager
async def watch_disk(
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
