"""What is stored of rollouts: in a folder, or wherever else an fsspec path names.

<storage>/<run>/trajectories/<ticket>.jsonl.zst, of its second trial <ticket>~2.jsonl.zst
<storage>/<run>/blobs/<digest>                   images that trajectories name

<run> is made once for each run, and no other run's. In the run's own directory it is left out.
"""

import contextlib
import hashlib
import secrets
from pathlib import Path
from typing import Protocol, cast

from fsspec.core import (  # pyright: ignore[reportMissingTypeStubs]
    url_to_fs,  # pyright: ignore[reportUnknownVariableType]
)

from plimsoll.core.errors import TrajectoryError, TrajectoryGone, UsageError
from plimsoll.runs.directory import TRAJECTORIES
from plimsoll.sandboxes.host.temporary import temporary_folder
from plimsoll.trajectories.blobs import blob_path
from plimsoll.trajectories.trajectory_file import Trajectory, read_trajectory

__all__ = [
    "BLOBS",
    "TRAJECTORIES",
    "Storage",
    "check_writable",
    "open_storage",
    "read_blob",
    "read_stored",
]

BLOBS = "blobs"


class Storage(Protocol):
    """As much of an fsspec file system as is needed."""

    @property
    def protocol(self) -> str | tuple[str, ...]: ...

    def makedirs(self, path: str, exist_ok: bool = False) -> None: ...

    def put_file(self, lpath: str, rpath: str) -> None: ...

    def get_file(self, rpath: str, lpath: str) -> None: ...

    def cat_file(self, path: str) -> bytes: ...

    def pipe_file(self, path: str, value: bytes) -> None: ...

    def rm_file(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...


def open_storage(url: str) -> tuple[Storage, str]:
    """The file system that a path is on, and the path there. Raises where there is no such."""
    try:
        return cast("tuple[Storage, str]", url_to_fs(url))
    except (ImportError, ValueError) as error:
        raise UsageError(f"storage.trajectories: {url} cannot be used: {error}") from error


def check_writable(url: str) -> None:
    """Write a small file there and remove it. Raises where that cannot be written."""
    storage, root = open_storage(url)
    probe = f"{root.rstrip('/')}/.plimsoll-{secrets.token_hex(8)}"
    try:
        storage.makedirs(root, exist_ok=True)
        storage.pipe_file(probe, b"Can it be written?\n")
    except Exception as error:  # the boundary: each file system has its own
        raise UsageError(
            f"storage.trajectories: {url} cannot be written: {type(error).__name__}: {error}; mend "
            "that, or name another place"
        ) from error
    # There are places where nothing may be removed.
    with contextlib.suppress(Exception):
        storage.rm_file(probe)


def read_stored(path: str, trial: str = "") -> Trajectory:
    """Read a trajectory from wherever it is stored.

    `trial` is the id of the trial that it must be of, where that is known. Raises `TrajectoryGone`
    where it is of another one.
    """
    found = _read(path)
    if trial and (other := found.opened.about.get("trial", trial)) != trial:
        raise TrajectoryGone(
            f"{path}: is the trajectory of the trial {other}, not of {trial}: another trial of the "
            "same ticket has overwritten it"
        )
    return found


def _read(path: str) -> Trajectory:
    storage, inside = open_storage(path)
    if "file" in storage.protocol:
        return read_trajectory(Path(inside))
    with temporary_folder() as folder:
        copy = folder / Path(inside).name
        try:
            storage.get_file(inside, str(copy))
        except FileNotFoundError as error:
            raise TrajectoryGone(f"{path}: there is no such file") from error
        except Exception as error:  # the boundary: each file system has its own
            raise TrajectoryError(f"{path}: cannot be read ({error!r})") from error
        return read_trajectory(copy)


def read_blob(trajectory: str, address: str) -> bytes:
    """The content of a `blob:` address that a stored trajectory names."""
    storage, inside = open_storage(trajectory)
    found = blob_path(address, Path(inside).parent.parent / BLOBS)
    if found is None:
        raise TrajectoryError(f"{trajectory}: {address[:80]!r} is not the address of a blob")
    try:
        content = storage.cat_file(str(found))
    except Exception as error:  # the boundary: each file system has its own
        raise TrajectoryError(f"{trajectory}: {found} cannot be read ({error!r})") from error
    if hashlib.sha256(content).hexdigest() != found.name:
        raise TrajectoryError(f"{trajectory}: {found} was changed after it was written")
    return content
