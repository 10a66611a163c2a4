"""Why a host cannot run local sandboxes, and what to do or use instead."""

import errno
from pathlib import Path
from typing import Any

from plimsoll.core.errors import SandboxUnavailable

__all__ = [
    "disk_full_message",
    "low_memory_message",
    "slow_disk_message",
    "start_error",
    "tmpfs_full_message",
]

_SWITCHES = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
_INSTEAD = "run as root, or use --backend docker"


def start_error(said: dict[str, Any], home: Path) -> SandboxUnavailable:
    """The error for what a sandbox's init said before it gave up."""
    step, number = str(said.get("step", "")), said.get("errno")
    return SandboxUnavailable(
        f"cannot start a local sandbox: {said['failed']}{_advice(step, number, home)}"
    )


def disk_full_message(home: Path, said: str) -> str:
    """What is said of a full disk under local sandboxes."""
    return (
        f"the disk of this host under {home} is full; make room there (plimsoll clean --expired), "
        f"or set PLIMSOLL_HOME to a folder on a larger one: {said}"
    )


def tmpfs_full_message(mb: int, said: str) -> str:
    """The message for a sandbox whose files in memory took all that they may."""
    return (
        f"the files of this sandbox are kept in memory, and {mb} MB were not enough; the next "
        "sandboxes of its image are kept on disk. Set storage_mb in task.toml to what the task "
        f'needs, raise [local] upper_mb, or set [local] upper = "disk": {said}'
    )


def slow_disk_message(home: Path, why: str, *, in_memory: bool) -> str:
    """The message for a home on a file system that many sandboxes make slow.

    With `in_memory`, files are kept in memory already where that is possible.
    """
    return (
        f"sandboxes start more slowly the more of them have run: {home} is on {why}. Set "
        "PLIMSOLL_HOME to a folder on tmpfs or on a file system with a journal"
        + ("" if in_memory else ', or set [local] upper = "tmpfs"')
    )


def low_memory_message(mb: int) -> str:
    """The message for sandboxes whose files were to be in memory and are not."""
    return (
        f"this host is short of memory: files of sandboxes ({mb} MB each) are kept on disk where "
        "all together would take more than half of what is available. Lower [local] upper_mb, "
        "or run fewer trials at once"
    )


def _advice(step: str, number: object, home: Path) -> str:
    if "user namespace" in step or step == "map the user":
        return f"; user namespaces are closed to this user ({_switches()}): {_INSTEAD}"
    if step == "mount the overlay" and number in (errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP):
        return (
            f"; the file system under {home} cannot carry an overlay (it may be one itself): "
            "set PLIMSOLL_HOME to a folder on ext4, xfs, btrfs or tmpfs"
        )
    if step == "mount /proc" and number == errno.EPERM:
        return f"; this process is in a container that hides parts of /proc: {_INSTEAD}"
    if step == "keep files in memory" and number == errno.EOPNOTSUPP:
        return (
            "; this kernel's tmpfs has no extended attributes for it (Linux 6.6 has): "
            'set [local] upper = "disk"'
        )
    if number == errno.ENOSPC:
        return f"; the disk under {home} or the limit on namespaces (user.max_*_namespaces) is full"
    if number == errno.EPERM:
        return f"; the kernel does not allow it here: {_INSTEAD}"
    return ""


def _switches() -> str:
    """Which kernel setting closes them, where one does."""
    for path, closed, cure in _SWITCHES:
        try:
            if Path(path).read_text().strip() == closed:
                return f"sysctl -w {cure} opens them"
        except OSError:
            continue
    return "a seccomp or container policy may be the cause"
