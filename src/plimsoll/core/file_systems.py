"""File systems of this host: their types, network file systems, and full disks."""

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import cast

__all__ = ["disk_full_reason", "file_system_type", "is_networked"]

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORKED = frozenset(
    (
        *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "fuse", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2"),
        *("smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs"),
    )
)
_LOCAL_FUSE = frozenset(("fuse.fuse-overlayfs",))
"""FUSE file systems that serve as the root of a container."""


def file_system_type(path: Path) -> str:
    """The file system type of a path, or of its nearest existing parent. Empty if unknown."""
    existing = _existing(path)
    with contextlib.suppress(OSError):
        descriptor = os.open(existing, os.O_PATH | os.O_CLOEXEC)
        try:
            # By the number of the mount: mount points can hide each other.
            about = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        finally:
            os.close(descriptor)
        number = re.search(r"^mnt_id:\s*(\d+)$", about, re.MULTILINE)
        for line in _MOUNTS.read_text("utf-8", "surrogateescape").splitlines():
            mount, _, kind = line.partition(" - ")
            if number is not None and mount.split(" ", 1)[0] == number[1]:
                return kind.split(" ", 1)[0]
    return ""


def is_networked(kind: str) -> bool:
    """Whether several hosts may use this type of file system at once.

    SQLite's write-ahead log does not work there: it needs locks and memory maps that all users of
    the file share.
    """
    if kind in _LOCAL_FUSE:
        return False
    return kind in _NETWORKED or kind.startswith("fuse.")


_FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_full_reason(error: BaseException, *folders: Path) -> str:
    """A message that names the full file system and the remedy. Empty for any other error.

    A write error does not name its file. The file system is then one of `folders`: a full one, or
    the first. The message contains no path of a trial, so that equal causes have equal messages.
    """
    if (found := _no_space(error)) is None:
        return ""
    named = found.filename2 or found.filename  # of two paths, the second is written
    if isinstance(named, (str, bytes)):
        folders = (Path(os.fsdecode(named)),)
    if not folders:
        return f"{found.strerror}: free some space on its disk"
    where = next(filter(_is_full, folders), folders[0])
    return (
        f"the file system at {_mount(where)} is full ({found.strerror}): make room there, by "
        "removing old runs or with plimsoll clean --expired"
    )


def _no_space(error: BaseException) -> OSError | None:
    """The disk-full error in an exception. None if a group contains any other error."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        found = [_no_space(one) for one in group.exceptions]
        return found[0] if all(found) else None
    return error if isinstance(error, OSError) and error.errno in _FULL else None


def _is_full(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        found = os.statvfs(_existing(folder))
        return not found.f_bavail or (found.f_files > 0 and not found.f_favail)
    return False


def _mount(folder: Path) -> Path:
    folder = _existing(folder)
    return next((path for path in (folder, *folder.parents) if path.is_mount()), folder)


def _existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if path.exists()), folder)
