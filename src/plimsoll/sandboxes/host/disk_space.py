"""Detects full disks: whether the disk below a backend's sandboxes was full, and when.

A failure on a full disk says nothing about the agent, so a trial checks for it before it trusts a
grade. Sandboxes of one backend share one disk. One check a second serves all of them, and each
request for a sandbox's status checks again.

File systems may reserve a part for root. Sandboxes write through an overlay with the rights of the
process that mounted it, whatever user they have inside. If that is root, the reserved part counts
as free.
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

_MIN_FREE = 8 << 20
"""Below this many free bytes the disk counts as full: a write that fails usually needed more."""
_LOW_PART, _LOW_MAX = 20, 2 << 30
"""The disk is low on space below a twentieth of its size, and below 2 GB."""
_PERIOD = 1.0
_UNUSABLE_PART, _UNUSABLE_MAX = 50, 256 << 20
"""Some blocks that ext4 reports as free cannot be used by anyone: at most a fiftieth of the disk,
and at most this many bytes with the largest common block size."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Figures of a file system: bytes, and the number of files it can still hold."""

    size: int
    free: int
    """Including the part reserved for root."""
    available: int
    files: int | None = None
    """Free inodes. None if the file system does not count them."""
    as_root: bool = False
    """Whether the sandboxes write as root."""

    @property
    def left(self) -> int:
        """Bytes that sandboxes can still write, at least."""
        # File systems that count no inodes, such as btrfs, reserve nothing for root.
        if not self.as_root or self.files is None:
            return self.available
        unusable = min(self.size // _UNUSABLE_PART, _UNUSABLE_MAX)
        return max(self.available, self.free - unusable)


class Disk:
    """One disk. `describe` turns a finding into a message that names the disk and the remedy."""

    def __init__(self, describe: Callable[[str], str]) -> None:
        self._describe = describe
        self.full: FullDisk | None = None
        """The last time it was found full. None if it never was."""
        self.short = False
        """Whether it was low on space at the last check."""
        self._reports_bytes = self._reports_files = False
        """Whether it ever reported free ones. Some file systems never do."""

    def note(self, space: DiskSpace) -> None:
        """Record the current figures."""
        self._reports_bytes |= space.free > 0
        self._reports_files |= bool(space.files)
        low = max(_MIN_FREE, min(space.size // _LOW_PART, _LOW_MAX))
        self.short = self._reports_bytes and space.left < low
        if self._reports_files and space.files == 0:
            self._found_full("no free inode was left")
        elif self._reports_bytes and space.left < _MIN_FREE:
            self._found_full(f"{max(space.left, 0) / 1e6:.1f} MB were left")

    def _found_full(self, left: str) -> None:
        why = self._describe(f"{left} at the last check")
        self.full = FullDisk(time.monotonic(), why)

    @contextlib.contextmanager
    def named(self) -> Generator[None]:
        """Add the name of this disk to a `NoRoom` error that its block raises."""
        try:
            yield
        except NoRoom as error:
            raise NoRoom(self._describe(str(error)), named=True) from None


class FolderDisk(Disk):
    """The disk of a folder on this host. `as_root`: whether sandboxes write as root."""

    def __init__(
        self, folder: Path, describe: Callable[[str], str], *, as_root: bool = False
    ) -> None:
        super().__init__(describe)
        self._folder = folder
        self._as_root = as_root

    def check(self) -> FullDisk | None:
        """Check the disk now. Returns the last time it was found full."""
        with contextlib.suppress(OSError):
            found = os.statvfs(self._folder)
            if found.f_blocks:
                self.note(_space(found, as_root=self._as_root))
        return self.full


class OpenDisk(Disk):
    """A disk known by an open descriptor, which it owns. Calls `on_full` when it is full."""

    def __init__(
        self, descriptor: int, describe: Callable[[str], str], on_full: Callable[[], None]
    ) -> None:
        super().__init__(describe)
        self._descriptor: int | None = descriptor
        self._on_full = on_full
        self.check()

    def check(self) -> FullDisk | None:
        if self._descriptor is not None:
            self.note(_space(os.statvfs(self._descriptor), as_root=False))
        return self.full

    def _found_full(self, left: str) -> None:
        super()._found_full(left)
        self._on_full()

    def close(self) -> None:
        """Close the descriptor. The last findings stay."""
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
async def watch_disk(check: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Call `check` every second while the block runs. A failing check ends no run."""
    task = asyncio.create_task(_check_repeatedly(check))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _check_repeatedly(check: Callable[[], Awaitable[None]]) -> None:
    failed = False
    while True:
        try:
            await check()
            failed = False
        except Exception as error:  # noqa: BLE001 - the next check may succeed
            if not failed:
                log.warning("the disk of the sandboxes cannot be checked: %s", error)
            failed = True
        await asyncio.sleep(_PERIOD)
