"""A sandbox's folder on the host, and what its init is to make of it."""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from plimsoll.sandboxes.local.cgroups import Cgroup
from plimsoll.sandboxes.local.home import Home
from plimsoll.sandboxes.local.image import LocalImage, overlay_name
from plimsoll.sandboxes.local.remains import Meta, unfinished
from plimsoll.sandboxes.protocol import SandboxSpec

__all__ = ["lay_out"]

_SHM_MB = 64


def lay_out(
    home: Home,
    folder: Path,
    image: LocalImage,
    spec: SandboxSpec,
    cgroup: Cgroup,
    *,
    userns: bool,
    durable: bool,
) -> dict[str, Any]:
    """Make the folder, first of all the note of whose it is; the spec for init."""
    lowers = image.lowers(home)
    groups = {name: str(path) for name, path in cgroup.folders.items()}
    making = unfinished(folder, spec.labels.owner)
    making.mkdir()
    (making / "meta.json").write_bytes(msgspec.json.encode(Meta(spec.labels, groups)))
    making.rename(folder)
    overlays = [_overlay(home, folder, target, lower) for target, lower in lowers.items()]
    for place in ("root", "aside", "aside/dev", "aside/proc"):
        (folder / place).mkdir(exist_ok=True)
    return {
        "home": str(home.path),
        "root": str(folder / "root"),
        "aside": str(folder / "aside"),
        "hostname": f"plimsoll-{folder.name}",
        "overlays": overlays,
        "overlay_options": _options(userns, durable),
        "binds": [
            *(_bind(source, target) for source, target in image.base.binds),
            *(
                _bind(str(m.source), m.target, m.unless_there)
                for m in (*spec.mounts, *spec.supplies.mounts)
            ),
        ],
        "userns": userns,
        "cgroups": cgroup.procs_files,
        "system_calls": sorted(spec.system_calls),
        "shm_mb": _SHM_MB,
        "workdir": spec.workdir or image.workdir,
    }


def _bind(source: str, target: str, unless_there: bool = False) -> dict[str, Any]:
    return {"source": source, "target": target, "unless_there": unless_there}


def _overlay(home: Home, folder: Path, target: str, lower: list[str]) -> dict[str, Any]:
    name = overlay_name(target)
    for kind in ("up", "work", "aside"):
        (folder / kind / name).mkdir(parents=True)
    # An overlay's root has the mode and the owner of its topmost folder.
    _like(folder / "up" / name, home.path / lower[0])
    up, work = (f"sandboxes/{folder.name}/{kind}/{name}" for kind in ("up", "work"))
    below = [_escape(path) for path in lower]
    return {"name": name, "target": target, "lower": below, "upper": up, "work": work}


def _like(path: Path, model: Path) -> None:
    info = model.stat()
    path.chmod(stat.S_IMODE(info.st_mode))
    if os.geteuid() == 0:
        os.chown(path, info.st_uid, info.st_gid)


def _options(userns: bool, durable: bool) -> str:
    # Files that are not kept need not survive a power cut, so nothing waits for the disk.
    return (",userxattr" if userns else "") + ("" if durable else ",volatile")


def _escape(path: str) -> str:
    """A path as an overlay option takes it."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
