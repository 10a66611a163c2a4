"""Why a host cannot run local sandboxes, and what to do or use instead."""

import errno
from pathlib import Path
from typing import Any

from plimsoll.core.errors import SandboxUnavailable

__all__ = ["cannot_start", "full_disk"]

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


def cannot_start(said: dict[str, Any], home: Path) -> SandboxUnavailable:
    """The error for what a sandbox's init said before it gave up."""
    step, number = str(said.get("step", "")), said.get("errno")
    return SandboxUnavailable(
        f"cannot start a local sandbox: {said['failed']}{_advice(step, number, home)}"
    )


def full_disk(home: Path, said: str) -> str:
    """What is said of a full disk under local sandboxes."""
    return (
        f"the disk of this host under {home} is full; make room there (plimsoll clean --expired), "
        f"or set PLIMSOLL_HOME to a folder on a larger one: {said}"
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
