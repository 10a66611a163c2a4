"""Resource limits through control groups, version 2 or 1, if this process may write them.

Otherwise nothing is limited, and `Cgroups.missing` names the limits that are not enforced.
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
"""For version 1 and version 2: the controller, its file, and the value that thaws."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The groups of one sandbox by controller. With version 2 all are one folder."""

    folders: dict[str, Path]
    settings: dict[str, list[tuple[str, str]]] = field(default_factory=dict[str, Any])
    """Files to write when the groups are created, by controller."""

    def create(self) -> None:
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
        """Processes killed by the kernel for lack of memory. None if it does not report them."""
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
        """Remove the groups and their subgroups. Remaining processes are killed.

        Raises `SandboxError` if a process does not die.
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
                            f"processes in the control group {folder} do not die: "
                            f"{', '.join(map(str, pids))}"
                        )
                    log.warning("the control group %s could not be removed", folder)
                    break
                time.sleep(0.005)


def thaw(pid: int) -> None:
    """Thaw the control groups of a frozen process, which could not be killed otherwise.

    Groups that also contain this process are left alone.
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
    """Remove a group and its subgroups. False if one of them contains a process."""
    for group in _below(folder):
        try:
            group.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _below(folder: Path) -> list[Path]:
    """A group and its subgroups, deepest first."""
    return [Path(path) for path, _, _ in os.walk(folder, topdown=False)] or [folder]


def _pids(folder: Path) -> list[int]:
    found: list[int] = []
    for group in _below(folder):
        with contextlib.suppress(OSError):
            found += (int(x) for x in (group / "cgroup.procs").read_text().split())
    return found


class Cgroups:
    """The limits that this process can set. Detected once, when the backend starts."""

    def __init__(self) -> None:
        self._parents, self._version = _find_parents()

    @property
    def missing(self) -> str | None:
        """A warning that names the limits that are not enforced. None if all are."""
        names = {"memory": "memory", "cpu": "CPU", "pids": "process"}
        absent = [names[c] for c in _CONTROLLERS if c not in self._parents]
        if not absent:
            return None
        return f"no cgroup write access: {', '.join(absent)} limits are not enforced"

    @property
    def limits_memory(self) -> bool:
        """Whether memory limits are enforced."""
        return "memory" in self._parents

    def plan(self, name: str, limits: Limits) -> Cgroup:
        """The groups of a sandbox for the limits that can be enforced. Creates nothing yet."""
        settings = self._settings(limits)
        return Cgroup(
            {c: self._parents[c] / f"plimsoll-{name}" for c in settings if c in self._parents},
            {c: files for c, files in settings.items() if c in self._parents},
        )

    def _settings(self, limits: Limits) -> dict[str, list[tuple[str, str]]]:
        """The files to write, by controller, for this host's version."""
        chosen: dict[str, list[tuple[str, str]]] = {}
        is_v1 = self._version == 1
        if limits.memory_mb is not None:
            amount = str(limits.memory_mb * 1024 * 1024)
            chosen["memory"] = [("memory.limit_in_bytes" if is_v1 else "memory.max", amount)]
            swap = "memory.swappiness" if is_v1 else "memory.swap.max"
            if "memory" in self._parents and (self._parents["memory"] / swap).exists():
                chosen["memory"].append((swap, "0"))
        if limits.cpus is not None:
            quota = max(1000, int(limits.cpus * _PERIOD))
            chosen["cpu"] = (
                [("cpu.cfs_period_us", str(_PERIOD)), ("cpu.cfs_quota_us", str(quota))]
                if is_v1
                else [("cpu.max", f"{quota} {_PERIOD}")]
            )
        if limits.pids is not None:
            chosen["pids"] = [("pids.max", str(limits.pids))]
        return chosen


def _find_parents() -> tuple[dict[str, Path], int]:
    """For each controller the folder in which groups can be created, and the version."""
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
            if folder.is_dir() and _can_create_groups(folder):
                found[controller] = folder
                break
    return found, 1


def _mounts(*more: str) -> dict[str, Path]:
    """Mount points by controller. The unified hierarchy has the empty name."""
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
    """The group of a process, by default this one, in each hierarchy."""
    found: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _usable_v2(mount: Path, own: str) -> dict[str, Path]:
    """The usable controllers of the unified hierarchy, each with its parent folder.

    Only a folder whose `subtree_control` already enables them is used: enabling them would
    change the host's own groups.
    """
    for folder in (mount / own.lstrip("/"), (mount / own.lstrip("/")).parent, mount):
        if not folder.is_relative_to(mount):
            continue
        with contextlib.suppress(OSError):
            enabled = set((folder / "cgroup.subtree_control").read_text().split())
            usable = [c for c in _CONTROLLERS if c in enabled]
            if usable and _can_create_groups(folder):
                return dict.fromkeys(usable, folder)
    return {}


def _can_create_groups(folder: Path) -> bool:
    probe = folder / f"plimsoll-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def available_memory_mb() -> int:
    """Memory in MB that this process and its sandboxes can still use."""
    left = [_meminfo("MemAvailable")]
    mounts, own = _mounts(), _own_groups()
    for controller in ("", "memory"):
        if controller in mounts:
            mount = mounts[controller]
            folder = mount / own.get(controller, "/").lstrip("/")
            for group in (folder, *folder.parents):
                if group.is_relative_to(mount) and (room := _free_bytes(group)) is not None:
                    left.append(room)
    return max(0, min(left)) >> 20


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) << 10
    return 0


def _free_bytes(group: Path) -> int | None:
    """Free bytes of a group, including the page cache that the kernel can drop."""
    for limit_file, used_file, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / limit_file).read_text())  # "max" if there is none: a ValueError
            return limit - int((group / used_file).read_text()) + _stat(group, cache_key)
    return None


def _stat(group: Path, key: str) -> int:
    for line in (group / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0
