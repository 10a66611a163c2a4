"""Whose a sandbox is, and whether its owner still lives.

A host is known by its name and a digest of its machine id: two machines of one name may share
a remote engine. Process numbers mean nothing outside of their namespace, so a container that
shares a host's name counts as a host of its own.
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

_HOSTS_OWN_PIDS = "pid:[4026531836]"
"""The namespace that the kernel starts with has this number everywhere."""
_MARK = "~"
_LETTERS = string.digits + string.ascii_lowercase
_MARK_WIDTHS = (5, 3, 5, 7)
"""Of a mark's parts: host, boot, process, and when that began. Ray has no room for a longer one in
the names of its sockets."""


def this_process() -> Owner:
    """This process, as an owner of sandboxes."""
    return Owner(_this_host(), os.getpid(), _started(os.getpid()) or "")


def is_alive(owner: Owner) -> bool:
    """Whether the owner still runs. One on another host is taken to be alive."""
    if owner == this_process() or not is_here(owner):
        return True
    return _started(owner.pid) == owner.started


def is_here(owner: Owner) -> bool:
    """Whether this host can tell if the owner lives."""
    return owner.host in (_this_host(), socket.gethostname())


def owner_tag(owner: Owner) -> str:
    """An owner in twenty letters, for the name of a file that says whose it is."""
    boot, _, ticks = owner.started.partition(":")
    digits = zip((owner.pid, int(ticks or 0)), _MARK_WIDTHS[2:], strict=True)
    return _digest(owner.host, 0) + _digest(boot, 1) + "".join(_digits(n, w) for n, w in digits)


def is_dead_owner_tag(mark: str) -> bool:
    """Whether a mark is of an owner on this host that is no more. Any other text is of nobody."""
    if len(mark) != sum(_MARK_WIDTHS) or not mark.isalnum() or not mark.isascii():
        return False
    ends = [sum(_MARK_WIDTHS[:n]) for n in range(5)]
    host, boot, pid, ticks = (mark[a:b] for a, b in itertools.pairwise(ends))
    if host != _digest(_this_host(), 0):
        return False
    if boot != _digest(_boot(), 1):
        return True
    return _started(int(pid, 36)) != f"{_boot()}:{int(ticks, 36)}"


def _digest(text: str, part: int) -> str:
    return _digits(int(hashlib.sha256(text.encode()).hexdigest(), 16), _MARK_WIDTHS[part])


def _digits(number: int, width: int) -> str:
    """The last digits of a number to the base of 36."""
    found = ""
    for _ in range(width):
        number, last = divmod(number, 36)
        found = _LETTERS[last] + found
    return found


def host_name(owner: Owner) -> str:
    """The name of the owner's host, for a person."""
    return owner.host.rpartition(_MARK)[0] or owner.host


@functools.cache
def _this_host() -> str:
    name = "-".join(socket.gethostname().split()) or "nameless"
    boot, pids = _boot(), _pid_namespace()
    # Without a machine id only this boot of the machine is known again, which errs on the safe
    # side: what an earlier boot left counts as another host's, and stays until it expires.
    parts = [_machine() or boot]
    if pids not in ("", _HOSTS_OWN_PIDS):
        parts += [boot, pids]
    return f"{name}{_MARK}{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:8]}"


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
    """When a process began, in a form that no other process of this host ever has."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{_boot()}:{fields[19].decode()}"
