"""Trajectories where they are stored: a folder, or whatever else an fsspec path names."""

import tempfile
from pathlib import Path
from typing import Protocol, cast

from fsspec.core import url_to_fs  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from plimsoll.core.errors import TrajectoryError
from plimsoll.trajectories.reader import Trajectory, read_trajectory

__all__ = ["read_stored"]


class _Storage(Protocol):
    """As much of an fsspec file system as is needed."""

    @property
    def protocol(self) -> str | tuple[str, ...]: ...

    def get_file(self, rpath: str, lpath: str) -> None: ...


def read_stored(path: str) -> Trajectory:
    """Read a trajectory from wherever it is stored."""
    storage, inside = cast("tuple[_Storage, str]", url_to_fs(path))
    if "file" in storage.protocol:
        return read_trajectory(Path(inside))
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        copy = Path(folder) / Path(inside).name
        try:
            storage.get_file(inside, str(copy))
        except OSError as error:
            raise TrajectoryError(f"{path}: cannot be read ({error})") from error
        return read_trajectory(copy)
