"""The processes of sandboxes that run, found from outside of the process that owns them."""

import contextlib
import os
import re
import select
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["end", "find_keepers"]

_ZYGOTE = b"plimsoll.sandboxes.local.inside.zygote"
_ROOT = re.compile(rb"^\S+ \S+ \S+ / / .*[,=]upperdir=sandboxes/([0-9a-f]+)/up/", re.MULTILINE)
_PATIENCE_MS = 5_000


def find_keepers(owners: Iterable[int]) -> dict[str, int]:
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


def end(keeper: int) -> None:
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
