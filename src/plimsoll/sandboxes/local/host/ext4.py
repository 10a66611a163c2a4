"""The file system of the home: detects a slow ext4, and spreads folders over its block groups."""

import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileSystem", "find_file_system", "spread_over_block_groups"]

_FS_IOC_GETFLAGS = 0x80086601
_FS_IOC_SETFLAGS = 0x40086602
_FS_TOPDIR_FL = 0x00020000
_EXT = ("ext2", "ext3", "ext4")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A mounted file system."""

    kind: str
    options: frozenset[str]
    journal: bool
    """False only if the kernel reports none."""

    @property
    def slow(self) -> str:
        """The reason why many removals make it slow. Empty if they do not.

        Without a journal, ext4 does not use the inode of a removed file again for one to six
        minutes, and every new file in the same block group scans past these. With `discard`
        it also waits for the device at each removal, which a journal would batch.
        """
        if self.kind not in _EXT or self.journal:
            return ""
        discard = ", mounted with discard" if "discard" in self.options else ""
        return f"{self.kind} without a journal{discard}"


def find_file_system(path: Path) -> FileSystem:
    """The file system of a path. Its kind is empty if the kernel does not report it."""
    device = path.stat().st_dev
    value = f"{os.major(device)}:{os.minor(device)}"
    found = FileSystem("", frozenset(), journal=True)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        # Fields are separated by one space each: the source of a mount may be empty.
        fields, (kind, _, options) = before.split(" "), after.split(" ")[:3]
        if fields[2] == value:
            shown = frozenset((*fields[5].split(","), *options.split(",")))
            found = FileSystem(kind, shown, kind not in _EXT or _has_journal(fields[2]))
    return found


def _has_journal(device: str) -> bool:
    """Whether an ext4 file system has a journal. True if the kernel does not report it."""
    try:
        name = Path(f"/sys/dev/block/{device}").resolve().name
        return Path(f"/sys/fs/ext4/{name}/journal_task").read_text().strip() != "<none>"
    except OSError:
        return True


def spread_over_block_groups(folder: Path) -> bool:
    """Make ext4 place each new folder in this one in a block group of its own.

    By default a new folder goes to the group of its parent, next to the inodes removed there.
    Other file systems have no such flag and need none. Returns whether it is set.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, bytes(8)))
            if not flags & _FS_TOPDIR_FL:
                value = struct.pack("l", flags | _FS_TOPDIR_FL)
                fcntl.ioctl(descriptor, _FS_IOC_SETFLAGS, value)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True
