"""The folder of a sandbox on the host, and the spec from which init sets up its file system."""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from plimsoll.sandboxes.local.host.cgroups import Cgroup
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.resources import SandboxMeta, staging_path
from plimsoll.sandboxes.local.images.image import LocalImage, overlay_name
from plimsoll.sandboxes.protocol import SandboxSpec

__all__ = ["prepare_sandbox"]

_SHM_MB = 64


def prepare_sandbox(
    home: Home,
    folder: Path,
    image: LocalImage,
    spec: SandboxSpec,
    cgroup: Cgroup,
    *,
    userns: bool,
    durable: bool,
    upper_mb: int | None,
) -> dict[str, Any]:
    """Create the folder with its `meta.json`, and return the spec for init.

    Init creates the rest: in the folder, or with `upper_mb` in a tmpfs of that size over it.
    """
    lowers = image.lowers(home)
    groups = {name: str(path) for name, path in cgroup.folders.items()}
    staging = staging_path(folder, spec.labels.owner)
    staging.mkdir()
    (staging / "meta.json").write_bytes(msgspec.json.encode(SandboxMeta(spec.labels, groups)))
    staging.rename(folder)
    overlays = [_overlay(home, folder, target, lower, userns) for target, lower in lowers.items()]
    return {
        "home": str(home.path),
        "mounts": home.mounts.name,
        "folder": str(folder.relative_to(home.path)),
        "upper_mb": upper_mb,
        "hostname": f"plimsoll-{folder.name}",
        "overlays": overlays,
        "overlay_options": _options(userns, durable or upper_mb is not None),
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


def _overlay(
    home: Home, folder: Path, target: str, lower: list[str], userns: bool
) -> dict[str, Any]:
    """The spec of an overlay. Paths are relative to the home."""
    name, below = overlay_name(target), folder.relative_to(home.path)
    topmost = (home.path / lower[0]).stat()
    # In a user namespace there is one user, who owns everything that init creates.
    owner = None if userns or os.geteuid() != 0 else (topmost.st_uid, topmost.st_gid)
    return {
        "name": name,
        "target": target,
        "lower": [_escape(path) for path in lower],
        "upper": f"{below}/up/{name}",
        "work": f"{below}/work-{name}",
        "mode": stat.S_IMODE(topmost.st_mode),
        "owner": owner,
    }


def _options(userns: bool, sync: bool) -> str:
    # Files that are not kept need not survive a power failure, so no write waits for the disk.
    # It costs three more inodes in each overlay, which a tmpfs can do without.
    return (",userxattr" if userns else "") + ("" if sync else ",volatile")


def _escape(path: str) -> str:
    """Escape a path for an overlay option."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
