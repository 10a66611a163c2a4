"""Messages for hosts that cannot run local sandboxes, with the remedy or an alternative."""

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

_SYSCTLS = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
_ALTERNATIVE = "run as root, or use --backend docker"


def start_error(reply: dict[str, Any], home: Path) -> SandboxUnavailable:
    """The error for the failure that a sandbox's init reported."""
    step, number = str(reply.get("step", "")), reply.get("errno")
    return SandboxUnavailable(
        f"cannot start a local sandbox: {reply['failed']}{_advice(step, number, home)}"
    )


def disk_full_message(home: Path, finding: str) -> str:
    """The message for a full disk below the local sandboxes."""
    return (
        f"the disk of this host under {home} is full; make room there (plimsoll clean --expired), "
        f"or set PLIMSOLL_HOME to a folder on a larger disk: {finding}"
    )


def tmpfs_full_message(mb: int, finding: str) -> str:
    """The message for a sandbox whose files in memory reached their limit."""
    return (
        f"the files of this sandbox are kept in memory, and {mb} MB were not enough; the next "
        "sandboxes of its image are kept on disk. Set storage_mb in task.toml to the need of "
        f'the task, raise [local] upper_mb, or set [local] upper = "disk": {finding}'
    )


def slow_disk_message(home: Path, why: str, *, in_memory: bool) -> str:
    """The message for a home on a file system that many sandboxes slow down.

    With `in_memory`, files are already kept in memory where possible.
    """
    return (
        f"sandboxes start more slowly the more of them have run: {home} is on {why}. Set "
        "PLIMSOLL_HOME to a folder on tmpfs or on a file system with a journal"
        + ("" if in_memory else ', or set [local] upper = "tmpfs"')
    )


def low_memory_message(mb: int) -> str:
    """The message for sandboxes whose files do not fit in memory."""
    return (
        f"this host is short of memory: files of sandboxes ({mb} MB each) are kept on disk, since "
        "together they would take more than half of the available memory. Lower [local] upper_mb, "
        "or run fewer trials at once"
    )


def _advice(step: str, number: object, home: Path) -> str:
    if "user namespace" in step or step == "map the user":
        return f"; this user may not create user namespaces ({_sysctl_advice()}): {_ALTERNATIVE}"
    if step == "mount the overlay" and number in (errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP):
        return (
            f"; the file system under {home} does not support overlays (it may be one itself): "
            "set PLIMSOLL_HOME to a folder on ext4, xfs, btrfs or tmpfs"
        )
    if step == "mount /proc" and number == errno.EPERM:
        return f"; this process is in a container that hides parts of /proc: {_ALTERNATIVE}"
    if step == "keep files in memory" and number == errno.EOPNOTSUPP:
        return (
            "; the tmpfs of this kernel lacks the extended attributes (Linux 6.6 has them): "
            'set [local] upper = "disk"'
        )
    if number == errno.ENOSPC:
        return f"; the disk under {home} or the limit on namespaces (user.max_*_namespaces) is full"
    if number == errno.EPERM:
        return f"; the kernel does not allow it here: {_ALTERNATIVE}"
    return ""


def _sysctl_advice() -> str:
    """The kernel setting that allows user namespaces, if one denies them."""
    for path, closed, cure in _SYSCTLS:
        try:
            if Path(path).read_text().strip() == closed:
                return f"sysctl -w {cure} allows it"
        except OSError:
            continue
    return "a seccomp or container policy may be the cause"
