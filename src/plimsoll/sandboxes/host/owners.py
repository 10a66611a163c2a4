"""Owners of sandboxes: identifies the owning process, and tells whether it is alive.

A host is identified by its name and a digest of its machine id: two machines with the same name
may share a remote daemon. Pids mean nothing outside their namespace, so a container that shares
the name of its host counts as a host of its own.
"""

import functools
import hashlib
import itertools
import os
import socket
import string
from pathlib import Path

from plimsoll.core.ids import Owner

__all__ = ["host_name", "is_alive", "is_dead_owner_tag", "is_here", "owner_tag", "this_process"]

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The initial pid namespace has this number on every host."""
_SEPARATOR = "~"
_BASE36 = string.digits + string.ascii_lowercase
_TAG_WIDTHS = (5, 3, 5, 7)
"""Widths of the parts of a tag: host, boot, pid, start time. Ray's socket paths have no room for a
longer tag."""


def this_process() -> Owner:
    """This process as an owner of sandboxes."""
    return Owner(_this_host(), os.getpid(), _started(os.getpid()) or "")


def is_alive(owner: Owner) -> bool:
    """Whether the owner is running. An owner on another host is assumed to be alive."""
    if owner == this_process() or not is_here(owner):
        return True
    return _started(owner.pid) == owner.started


def is_here(owner: Owner) -> bool:
    """Whether the owner is on this host, so that `is_alive` is certain."""
    return owner.host in (_this_host(), socket.gethostname())


def owner_tag(owner: Owner) -> str:
    """An owner as twenty characters, for file names."""
    boot, _, ticks = owner.started.partition(":")
    digits = zip((owner.pid, int(ticks or 0)), _TAG_WIDTHS[2:], strict=True)
    return _digest(owner.host, 0) + _digest(boot, 1) + "".join(_digits(n, w) for n, w in digits)


def is_dead_owner_tag(tag: str) -> bool:
    """Whether a tag names a dead owner on this host. False for text that is not a tag."""
    if len(tag) != sum(_TAG_WIDTHS) or not tag.isalnum() or not tag.isascii():
        return False
    ends = [sum(_TAG_WIDTHS[:n]) for n in range(5)]
    host, boot, pid, ticks = (tag[a:b] for a, b in itertools.pairwise(ends))
    if host != _digest(_this_host(), 0):
        return False
    if boot != _digest(_boot(), 1):
        return True
    return _started(int(pid, 36)) != f"{_boot()}:{int(ticks, 36)}"


def _digest(text: str, part: int) -> str:
    return _digits(int(hashlib.sha256(text.encode()).hexdigest(), 16), _TAG_WIDTHS[part])


def _digits(number: int, width: int) -> str:
    """The last digits of a number in base 36."""
    found = ""
    for _ in range(width):
        number, last = divmod(number, 36)
        found = _BASE36[last] + found
    return found


def host_name(owner: Owner) -> str:
    """The host name of an owner, for messages."""
    return owner.host.rpartition(_SEPARATOR)[0] or owner.host


@functools.cache
def _this_host() -> str:
    name = "-".join(socket.gethostname().split()) or "nameless"
    boot, pids = _boot(), _pid_namespace()
    # Without a machine id only the current boot is recognized. Resources of an earlier boot then
    # count as another host's and stay until they expire, which is the safe side.
    parts = [_machine() or boot]
    if pids not in ("", _INITIAL_PID_NAMESPACE):
        parts += [boot, pids]
    return f"{name}{_SEPARATOR}{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:8]}"


def _machine() -> str:
    try:
        found = Path("/etc/machine-id").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return found if len(found) == 32 else ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """The start time of a process, unique together with its pid. None if it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{_boot()}:{fields[19].decode()}"
