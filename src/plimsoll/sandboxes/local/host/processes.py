"""The processes of sandboxes that run, found from outside of the process that owns them."""

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
_PATIENCE_MS = 5_000
_LOOK_SECONDS = 0.02


def find_monitors(owners: Iterable[int]) -> dict[str, int]:
    """The keeper of each sandbox that these processes own, by the sandbox's id.

    Only a child of an owner's zygote is ever taken for one: it is going to be killed.
    """
    wanted = set(owners)
    if not wanted:
        return {}
    children = _children()
    found: dict[str, int] = {}
    for zygote in (child for owner in wanted for child in children.get(owner, ())):
        if _ZYGOTE in _read(zygote, "cmdline"):
            for keeper in children.get(zygote, ()):
                if (root := _ROOT.search(_read(keeper, "mountinfo"))) is not None:
                    found[root[1].decode()] = keeper
    return found


def kill_sandbox(keeper: int) -> None:
    """Kill a sandbox's init, and so every process in it, and wait until its keeper is gone."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(keeper)
        try:
            for init in _children().get(keeper, ()):
                os.kill(init, signal.SIGKILL)
            if not _ended(descriptor):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                _ended(descriptor)
        finally:
            os.close(descriptor)


def kill_survivors(sandbox: str, seconds: float, keeper: int | None = None) -> None:
    """Kill every process that still sees a sandbox's files, and wait until none is left.

    `keeper` is the sandbox's, while it lives: the init is its child. Raises `SandboxError` where
    a process does not die; the sandbox's folder is not to be removed then.
    """
    deadline = time.monotonic() + seconds
    while left := _processes_of(sandbox, keeper):
        for pid in left:
            thaw(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            names = ", ".join(f"{pid} ({name})" for pid, name in sorted(left.items()))
            raise SandboxError(
                f"processes of the sandbox {sandbox} do not end: {names}; its files are kept. "
                "Something outside holds them (a debugger, a freezer, a hanging disk): end that, "
                "and the next start of Plimsoll removes them"
            )
        time.sleep(_LOOK_SECONDS)


def _processes_of(sandbox: str, keeper: int | None) -> dict[int, str]:
    """The processes of a sandbox by pid, with their names; its keeper only when it is the last."""
    mounted = f"upperdir=sandboxes/{sandbox}/".encode()
    found: dict[int, str] = {}
    keepers: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            pid = int(entry.name)
            name, _, rest = _read(pid, "stat").partition(b"(")[2].rpartition(b")")
            state, parent = rest.split()[:2] or (b"X", b"0")
            if state in (b"Z", b"X"):
                continue
            if pid == keeper:
                if _ZYGOTE in _read(int(parent), "cmdline"):
                    keepers[pid] = name.decode("utf-8", "replace")
            elif int(parent) == keeper or _sees(pid, mounted):
                found[pid] = name.decode("utf-8", "replace")
    return found or keepers


def _sees(pid: int, mounted: bytes) -> bool:
    """Whether a process has a mount with these options."""
    try:
        if Path(f"/proc/{pid}/ns/mnt").samefile("/proc/self/ns/mnt"):
            return False  # quicker than to read what this process has mounted
    except PermissionError:
        pass
    except OSError:
        return False
    return mounted in _read(pid, "mountinfo")


def _ended(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(_PATIENCE_MS))


def _children() -> Mapping[int, list[int]]:
    """The processes of this host, by their parents."""
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
