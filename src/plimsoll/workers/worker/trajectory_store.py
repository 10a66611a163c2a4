"""Storage of trajectories: the run directory, or any fsspec path.

<storage>/<run>/trajectories/<ticket>.jsonl.zst, of its second trial <ticket>~2.jsonl.zst
<storage>/<run>/blobs/<digest>                   images that trajectories refer to

<run> is unique to each run. In the run's own directory it is left out.
"""

import asyncio
import contextlib
import functools
import hashlib
import itertools
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, cast

from plimsoll.core.errors import TrajectoryError, TrajectoryGone, UsageError
from plimsoll.core.file_systems import disk_full_reason
from plimsoll.sandboxes.host.temporary import temporary_folder
from plimsoll.trajectories.blobs import blob_path
from plimsoll.trajectories.trajectory import Trajectory
from plimsoll.trajectories.trajectory_file import FILE_NAME, read_trajectory

__all__ = [
    "BLOBS",
    "TRAJECTORIES",
    "Storage",
    "TrajectoryStore",
    "check_writable",
    "open_storage",
    "read_blob",
    "read_stored",
]

BLOBS = "blobs"
TRAJECTORIES = "trajectories"


class Storage(Protocol):
    """The part of the fsspec file system interface that is used."""

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
    """The file system of a path, and the path on it. Raises if there is no such file system."""
    # Imported here: most runs store trajectories in their own directory.
    from fsspec.core import (  # pyright: ignore[reportMissingTypeStubs]
        url_to_fs,  # pyright: ignore[reportUnknownVariableType]
    )

    try:
        return cast("tuple[Storage, str]", url_to_fs(url))
    except (ImportError, ValueError) as error:
        raise UsageError(f"storage.trajectories: {url} cannot be used: {error}") from error


def check_writable(url: str) -> None:
    """Write a small file there and remove it. Raises if it is not writable."""
    storage, root = open_storage(url)
    probe = f"{root.rstrip('/')}/.plimsoll-{secrets.token_hex(8)}"
    try:
        storage.makedirs(root, exist_ok=True)
        storage.pipe_file(probe, b"Can it be written?\n")
    except Exception as error:  # the boundary: each file system raises its own errors
        raise UsageError(
            f"storage.trajectories: {url} cannot be written: {type(error).__name__}: {error}; fix "
            "that, or name another storage"
        ) from error
    # Some storages do not permit removal.
    with contextlib.suppress(Exception):
        storage.rm_file(probe)


def read_stored(path: str, trial: str = "") -> Trajectory:
    """Read a stored trajectory.

    `trial` is the id of the expected trial, if known. Raises `TrajectoryGone` if the trajectory is
    of another one.
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
        except Exception as error:  # the boundary: each file system raises its own errors
            raise TrajectoryError(f"{path}: cannot be read ({error!r})") from error
        return read_trajectory(copy)


def read_blob(trajectory: str, address: str) -> bytes:
    """The content of a `blob:` address in a stored trajectory."""
    storage, inside = open_storage(trajectory)
    found = blob_path(address, Path(inside).parent.parent / BLOBS)
    if found is None:
        raise TrajectoryError(f"{trajectory}: {address[:80]!r} is not the address of a blob")
    try:
        content = storage.cat_file(str(found))
    except Exception as error:  # the boundary: each file system raises its own errors
        raise TrajectoryError(f"{trajectory}: {found} cannot be read ({error!r})") from error
    if hashlib.sha256(content).hexdigest() != found.name:
        raise TrajectoryError(f"{trajectory}: {found} was changed after it was written")
    return content


_SECONDS = 600.0
"""Time limit for storing one trajectory: unresponsive storage does not block a trial forever."""


class TrajectoryStore:
    """The trajectory storage of a run: its own directory, or a folder below any fsspec URL.

    `run` is unique there: other runs, which may share the storage, have tickets of the same names.
    """

    def __init__(self, url: str | None, directory: Path, run: str) -> None:
        assert url is None or run, "files there could be of another run"
        self._url = str(directory) if url is None else f"{url.rstrip('/')}/{run}"
        self._own = directory if url is None else None
        if self._own is None:
            _ = (
                self._opened
            )  # a storage that cannot be opened is an error of the run, not of a trial

    @functools.cached_property
    def _opened(self) -> tuple[Storage, str]:
        storage, root = open_storage(self._url)
        return storage, root.rstrip("/")

    @property
    def _storage(self) -> Storage:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    async def keep_in_time(self, folder: Path, ticket: str, blobs: Sequence[Path]) -> str:
        """Call `keep` in a thread. Raises `TrajectoryError` after the time limit."""
        stored: Future[str] = Future()

        def work() -> None:
            if not stored.set_running_or_notify_cancel():
                return  # the caller was cancelled
            try:
                stored.set_result(self.keep(folder, ticket, blobs))
            except BaseException as error:  # noqa: BLE001 - raised in the caller by the future
                stored.set_exception(error)

        # A daemon thread of its own, never joined: one that hangs takes no thread of a pool and
        # does not keep the worker from exiting.
        threading.Thread(target=work, name="storing", daemon=True).start()
        try:
            async with asyncio.timeout(_SECONDS):
                return await asyncio.wrap_future(stored)
        except TimeoutError:
            raise TrajectoryError(
                f"trajectories cannot be stored at {self._url}: not finished within {_SECONDS:g} s"
            ) from None

    def keep(self, folder: Path, ticket: str, blobs: Sequence[Path] = ()) -> str:
        """Store the trajectory of a trial's folder and the blobs that it refers to. Blocks.

        Returns its path: relative to the run directory if it is inside it, else a complete fsspec
        path; empty if there is no trajectory. Raises `TrajectoryError` if it cannot be stored; the
        file then stays in place.
        """
        file = folder / FILE_NAME
        if not file.is_file():
            return ""
        name = ticket.replace("/", "_")
        try:
            return self._carry(file, name, blobs)
        except Exception as error:  # the boundary: each file system raises its own errors
            raise TrajectoryError(self._why(error, name)) from error

    def _carry(self, file: Path, name: str, blobs: Sequence[Path]) -> str:
        if self._own is not None:
            return f"{TRAJECTORIES}/{_link(file, self._own / TRAJECTORIES, name)}"
        self._put_blobs(blobs)
        free = next(one for one in _names(name) if not self._storage.exists(self._stored_path(one)))
        self._put(file, f"{TRAJECTORIES}/{free}")
        file.unlink()
        return f"{self._url}/{TRAJECTORIES}/{free}"

    def _stored_path(self, name: str) -> str:
        return f"{self._root}/{TRAJECTORIES}/{name}"

    def _why(self, error: Exception, name: str) -> str:
        """The reason without the ticket, so that equal failures have equal messages."""
        folders = (Path(self._root),) if "file" in self._storage.protocol else ()
        said = disk_full_reason(error, *folders) or _said(error).replace(name, "<ticket>")
        return f"trajectories cannot be stored at {self._url}: {said}"

    def _put_blobs(self, blobs: Sequence[Path]) -> None:
        for blob in blobs:
            there = f"{BLOBS}/{blob.name}"
            if blob.is_file() and not self._storage.exists(f"{self._root}/{there}"):
                self._put(blob, there)

    def _put(self, file: Path, name: str) -> None:
        target = f"{self._root}/{name}"
        self._storage.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._storage.put_file(str(file), target)


def _said(error: Exception) -> str:
    """The message of an error, without the path if the error has it separately."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())


def _names(name: str) -> Iterator[str]:
    """Names for a ticket's trajectory: a ticket that is restarted after a power cut has several,
    and none is overwritten."""
    yield f"{name}.jsonl.zst"
    for number in itertools.count(2):
        yield f"{name}~{number}.jsonl.zst"


def _link(file: Path, folder: Path, name: str) -> str:
    """Link the file under its ticket's name, or copy it where hard links are not supported."""
    folder.mkdir(exist_ok=True)
    names = _names(name)
    while True:
        target = folder / next(names)
        with contextlib.suppress(FileExistsError):
            try:
                target.hardlink_to(file)
            except PermissionError:  # a file system without hard links
                with file.open("rb") as source, target.open("xb") as copy:
                    shutil.copyfileobj(source, copy)
            return target.name
