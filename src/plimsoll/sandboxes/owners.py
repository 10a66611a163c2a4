"""Whose a sandbox is, and whether its owner still lives."""

import os
import socket
from pathlib import Path

from plimsoll.core.ids import Owner

__all__ = ["is_alive", "myself"]


def myself() -> Owner:
    """This process, as an owner of sandboxes."""
    return Owner(socket.gethostname(), os.getpid(), _started(os.getpid()) or "")


def is_alive(owner: Owner) -> bool:
    """Whether the owner still runs. One on another host is taken to be alive."""
    return owner.host != socket.gethostname() or _started(owner.pid) == owner.started


def _started(pid: int) -> str | None:
    """When a process began, in a form that no other process of this host ever has."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{boot}:{fields[19].decode()}"
