"""Limits through control groups, version 2 or 1, where this process may write them.

Where it may not, nothing is limited and `Cgroups.missing` says so, once for a run.
"""

import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.sandboxes.protocol import Limits

__all__ = ["Cgroup", "Cgroups", "available_memory_mb", "thaw"]

log = logging.getLogger(__name__)

_CONTROLLERS = ("memory", "cpu", "pids")
_PERIOD = 100_000
_REMOVE_SECONDS = 5.0
_FREEZERS = (("freezer", "freezer.state", "THAWED"), ("", "cgroup.freeze", "0"))
"""For version 1 and version 2: the controller, its file, and the word that thaws."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The groups of one sandbox, by controller; with version 2 they are one folder."""

    folders: dict[str, Path]
    settings: dict[str, list[tuple[str, str]]] = field(default_factory=dict[str, Any])
    """Files to write when the groups are made, by controller."""

    def make(self) -> None:
        try:
            for controller, folder in self.folders.items():
                folder.mkdir(exist_ok=True)
                for file, value in self.settings.get(controller, ()):
                    (folder / file).write_text(value)
        except OSError as error:
            raise SandboxUnavailable(
                f"limits could not be set in {error.filename}: {error.strerror}"
            ) from None

    @property
    def procs_files(self) -> list[str]:
        return sorted({str(folder / "cgroup.procs") for folder in self.folders.values()})

    def oom_kills(self) -> int | None:
        """How often the kernel killed a process for memory; None where it does not say."""
        folder = self.folders.get("memory")
        if folder is None:
            return None
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                for line in (folder / name).read_text().splitlines():
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
        return None

    def remove(self) -> None:
        """Remove the groups and all below them; their processes are dead, or are killed now.

        Raises `SandboxError` where processes do not die.
        """
        deadline = time.monotonic() + _REMOVE_SECONDS
        for folder in set(self.folders.values()):
            while not _remove(folder):
                pids = _pids(folder)
                for pid in pids:
                    thaw(pid)
                    with contextlib.suppress(OSError):
                        os.kill(pid, 9)
                if time.monotonic() > deadline:
                    if pids:
                        raise SandboxError(
                            f"processes in the control group {folder} do not end: "
                            f"{', '.join(map(str, pids))}"
                        )
                    log.warning("the control group %s could not be removed", folder)
                    break
                time.sleep(0.005)


def thaw(pid: int) -> None:
    """Let a process run on that a control group holds frozen: otherwise it cannot be killed.

    Groups that this process is in, too, are left as they are.
    """
    with contextlib.suppress(OSError):
        mounts, own = _mounts("freezer"), _own_groups()
        for name, file, word in _FREEZERS:
            group, ours = _own_groups(pid).get(name), Path(own.get(name, "/"))
            if group is None or name not in mounts:
                continue
            for path in (Path(group), *Path(group).parents):
                if not ours.is_relative_to(path):
                    with contextlib.suppress(OSError):
                        (mounts[name] / str(path).lstrip("/") / file).write_text(word)


def _remove(folder: Path) -> bool:
    """Remove a group and those below it; False where a process is in one of them."""
    for group in _below(folder):
        try:
            group.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _below(folder: Path) -> list[Path]:
    """A group and all groups below it, the deepest first."""
    return [Path(path) for path, _, _ in os.walk(folder, topdown=False)] or [folder]


def _pids(folder: Path) -> list[int]:
    found: list[int] = []
    for group in _below(folder):
        with contextlib.suppress(OSError):
            found += (int(x) for x in (group / "cgroup.procs").read_text().split())
    return found


class Cgroups:
    """What this host lets us limit. Looked at once, when the backend starts."""

    def __init__(self) -> None:
        self._parents, self._version = _find_parents()

    @property
    def missing(self) -> str | None:
        """Which limits are not enforced here, in a person's words; None if all are."""
        names = {"memory": "memory", "cpu": "CPU", "pids": "process"}
        absent = [names[c] for c in _CONTROLLERS if c not in self._parents]
        if not absent:
            return None
        return f"no cgroup write access: {', '.join(absent)} limits are not enforced"

    @property
    def limits_memory(self) -> bool:
        """Whether a limit of memory can be enforced here."""
        return "memory" in self._parents

    def plan(self, name: str, limits: Limits) -> Cgroup:
        """The groups for a sandbox with those limits that can be enforced; none is made yet."""
        settings = self._settings(limits)
        return Cgroup(
            {c: self._parents[c] / f"plimsoll-{name}" for c in settings if c in self._parents},
            {c: files for c, files in settings.items() if c in self._parents},
        )

    def _settings(self, limits: Limits) -> dict[str, list[tuple[str, str]]]:
        """The files to write, by controller, in this host's version."""
        chosen: dict[str, list[tuple[str, str]]] = {}
        first = self._version == 1
        if limits.memory_mb is not None:
            amount = str(limits.memory_mb * 1024 * 1024)
            chosen["memory"] = [("memory.limit_in_bytes" if first else "memory.max", amount)]
            swap = "memory.swappiness" if first else "memory.swap.max"
            if "memory" in self._parents and (self._parents["memory"] / swap).exists():
                chosen["memory"].append((swap, "0"))
        if limits.cpus is not None:
            quota = max(1000, int(limits.cpus * _PERIOD))
            chosen["cpu"] = (
                [("cpu.cfs_period_us", str(_PERIOD)), ("cpu.cfs_quota_us", str(quota))]
                if first
                else [("cpu.max", f"{quota} {_PERIOD}")]
            )
        if limits.pids is not None:
            chosen["pids"] = [("pids.max", str(limits.pids))]
        return chosen


def _find_parents() -> tuple[dict[str, Path], int]:
    """For each controller the folder in which groups can be made, and the version."""
    mounts = _mounts()
    own = _own_groups()
    if "" in mounts:
        unified = _usable_v2(mounts[""], own.get("", "/"))
        if unified:
            return unified, 2
    found: dict[str, Path] = {}
    for controller in _CONTROLLERS:
        if controller not in mounts:
            continue
        below = mounts[controller] / own.get(controller, "/").lstrip("/")
        for folder in (below, mounts[controller]):
            if folder.is_dir() and _can_make_groups(folder):
                found[controller] = folder
                break
    return found, 1


def _mounts(*more: str) -> dict[str, Path]:
    """Mount points by controller; the unified hierarchy is under the empty name."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, options = line.split()[:4]
        if kind == "cgroup2":
            found.setdefault("", Path(target))
        elif kind == "cgroup":
            for option in options.split(","):
                if option in (*_CONTROLLERS, *more):
                    found.setdefault(option, Path(target))
    return found


def _own_groups(pid: int | str = "self") -> dict[str, str]:
    """The group of a process, usually of this one, in each hierarchy."""
    found: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _usable_v2(mount: Path, own: str) -> dict[str, Path]:
    """Controllers that groups below some folder of ours get in the unified hierarchy.

    Only a folder whose `subtree_control` already hands them on is used: switching them on
    would take the host's own groups apart.
    """
    for folder in (mount / own.lstrip("/"), (mount / own.lstrip("/")).parent, mount):
        if not folder.is_relative_to(mount):
            continue
        with contextlib.suppress(OSError):
            handed_on = set((folder / "cgroup.subtree_control").read_text().split())
            usable = [c for c in _CONTROLLERS if c in handed_on]
            if usable and _can_make_groups(folder):
                return dict.fromkeys(usable, folder)
    return {}


def _can_make_groups(folder: Path) -> bool:
    probe = folder / f"plimsoll-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def available_memory_mb() -> int:
    """Memory that this process and its sandboxes may still use, by the host and its own groups."""
    left = [_meminfo("MemAvailable")]
    mounts, own = _mounts(), _own_groups()
    for controller in ("", "memory"):
        if controller in mounts:
            mount = mounts[controller]
            folder = mount / own.get(controller, "/").lstrip("/")
            for group in (folder, *folder.parents):
                if group.is_relative_to(mount) and (room := _room_in(group)) is not None:
                    left.append(room)
    return max(0, min(left)) >> 20


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) << 10
    return 0


def _room_in(group: Path) -> int | None:
    """Bytes that a group has left, with what the kernel would drop of its cache."""
    for most, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / most).read_text())  # "max" where there is none
            return limit - int((group / used).read_text()) + _stat(group, cache)
    return None


def _stat(group: Path, key: str) -> int:
    for line in (group / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0
