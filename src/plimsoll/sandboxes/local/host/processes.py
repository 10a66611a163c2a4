"""The processes of running sandboxes, found and killed by a process other than their owner."""

import contextlib
import os
import re
import select
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from plimsoll.core.errors import SandboxError
from plimsoll.sandboxes.local.host.cgroups import thaw

__all__ = ["find_monitors", "kill_sandbox", "kill_survivors"]

_ZYGOTE = b"plimsoll.sandboxes.local.inside.zygote"
_ROOT = re.compile(rb"^\S+ \S+ \S+ / / .*[,=]upperdir=sandboxes/([0-9a-f]+)/up/", re.MULTILINE)
_EXIT_TIMEOUT_MS = 5_000
_KILL_SECONDS = 10.0
"""Processes that a signal has not ended after this time are reported."""
_POLL_SECONDS = 0.02


def find_monitors(owners: Iterable[int]) -> dict[str, int]:
    """The monitor of each sandbox that these processes own, by sandbox id.

    Only children of an owner's zygote count as monitors, since they are going to be killed.
    """
    owner_pids = set(owners)
    if not owner_pids:
        return {}
    children = _children()
    found: dict[str, int] = {}
    for zygote in (child for owner in owner_pids for child in children.get(owner, ())):
        if _ZYGOTE in _read(zygote, "cmdline"):
            for monitor in children.get(zygote, ()):
                if (root := _ROOT.search(_read(monitor, "mountinfo"))) is not None:
                    found[root[1].decode()] = monitor
    return found


def kill_sandbox(monitor: int) -> None:
    """Kill a sandbox's init, and so all its processes, and wait until its monitor is gone."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(monitor)
        try:
            for init in _children().get(monitor, ()):
                os.kill(init, signal.SIGKILL)
            if not _has_exited(descriptor):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                _has_exited(descriptor)
        finally:
            os.close(descriptor)


def kill_survivors(sandbox: str, monitor: int | None = None) -> None:
    """Kill all processes that still see a sandbox's files, and wait until none is left.

    `monitor` is the sandbox's monitor, if it is alive: init is its child. Raises `SandboxError`
    if a process does not die; the sandbox's folder must not be removed then.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while left := _processes_of(sandbox, monitor):
        for pid in left:
            thaw(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            names = ", ".join(f"{pid} ({name})" for pid, name in sorted(left.items()))
            raise SandboxError(
                f"processes of the sandbox {sandbox} do not die: {names}; its files are kept. "
                "Something on the host holds them (a debugger, a freezer, a hanging disk): end it, "
                "and the next start of Plimsoll removes them"
            )
        time.sleep(_POLL_SECONDS)


def _processes_of(sandbox: str, monitor: int | None) -> dict[int, str]:
    """The names of a sandbox's processes by pid. Its monitor is included only if it is the last."""
    mounted = f"upperdir=sandboxes/{sandbox}/".encode()
    found: dict[int, str] = {}
    monitors: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            pid = int(entry.name)
            name, _, rest = _read(pid, "stat").partition(b"(")[2].rpartition(b")")
            state, parent = rest.split()[:2] or (b"X", b"0")
            if state in (b"Z", b"X"):
                continue
            if pid == monitor:
                if _ZYGOTE in _read(int(parent), "cmdline"):
                    monitors[pid] = name.decode("utf-8", "replace")
            elif int(parent) == monitor or _sees(pid, mounted):
                found[pid] = name.decode("utf-8", "replace")
    return found or monitors


def _sees(pid: int, mounted: bytes) -> bool:
    """Whether a process has a mount with these options."""
    try:
        if Path(f"/proc/{pid}/ns/mnt").samefile("/proc/self/ns/mnt"):
            return False  # quicker than reading mountinfo
    except PermissionError:
        pass
    except OSError:
        return False
    return mounted in _read(pid, "mountinfo")


def _has_exited(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(_EXIT_TIMEOUT_MS))


def _children() -> Mapping[int, list[int]]:
    """The child processes of each process of this host."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _read(int(entry.name), "stat").rpartition(b")")[2].split()
            if fields:
                found[int(fields[1])].append(int(entry.name))
    return found


def _read(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""
