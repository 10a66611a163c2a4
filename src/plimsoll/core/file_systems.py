"""File system types: the type under a path, and whether other hosts may share it."""

import contextlib
import os
import re
from pathlib import Path

__all__ = ["file_system", "is_networked"]

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


def file_system(path: Path) -> str:
    """The file system type of a path, or of its nearest existing parent. Empty if unknown."""
    place = path.absolute()
    place = next((one for one in (place, *place.parents) if one.exists()), place)
    with contextlib.suppress(OSError):
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
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
