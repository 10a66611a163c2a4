"""What is stored of rollouts: in a folder, or wherever else an fsspec path names.

<storage>/trajectories/<ticket>.jsonl.zst
<storage>/blobs/<digest>                   images that trajectories name
"""

import hashlib
import tempfile
from pathlib import Path
from typing import Protocol, cast

from fsspec.core import (  # pyright: ignore[reportMissingTypeStubs]
    url_to_fs,  # pyright: ignore[reportUnknownVariableType]
)

from plimsoll.core.errors import TrajectoryError, TrajectoryGone, UsageError
from plimsoll.trajectories.blobs import blob_path
from plimsoll.trajectories.reader import Trajectory, read_trajectory

__all__ = ["BLOBS", "TRAJECTORIES", "Storage", "open_storage", "read_blob", "read_stored"]

TRAJECTORIES = "trajectories"
BLOBS = "blobs"


class Storage(Protocol):
    """As much of an fsspec file system as is needed."""

    @property
    def protocol(self) -> str | tuple[str, ...]: ...

    def makedirs(self, path: str, exist_ok: bool = False) -> None: ...

    def put_file(self, lpath: str, rpath: str) -> None: ...

    def get_file(self, rpath: str, lpath: str) -> None: ...

    def cat_file(self, path: str) -> bytes: ...

    def exists(self, path: str) -> bool: ...


def open_storage(url: str) -> tuple[Storage, str]:
    """The file system that a path is on, and the path there. Raises where there is no such."""
    try:
        return cast("tuple[Storage, str]", url_to_fs(url))
    except (ImportError, ValueError) as error:
        raise UsageError(f"storage.trajectories: {url} cannot be used: {error}") from error


def read_stored(path: str) -> Trajectory:
    """Read a trajectory from wherever it is stored."""
    storage, inside = open_storage(path)
    if "file" in storage.protocol:
        return read_trajectory(Path(inside))
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        copy = Path(folder) / Path(inside).name
        try:
            storage.get_file(inside, str(copy))
        except FileNotFoundError as error:
            raise TrajectoryGone(f"{path}: there is no such file") from error
        except OSError as error:
            raise TrajectoryError(f"{path}: cannot be read ({error})") from error
        return read_trajectory(copy)


def read_blob(trajectory: str, address: str) -> bytes:
    """The content of a `blob:` address that a stored trajectory names."""
    storage, inside = open_storage(trajectory)
    found = blob_path(address, Path(inside).parent.parent / BLOBS)
    if found is None:
        raise TrajectoryError(f"{trajectory}: {address[:80]!r} is not the address of a blob")
    try:
        content = storage.cat_file(str(found))
    except OSError as error:
        raise TrajectoryError(f"{trajectory}: {found} cannot be read ({error})") from error
    if hashlib.sha256(content).hexdigest() != found.name:
        raise TrajectoryError(f"{trajectory}: {found} was changed after it was written")
    return content
