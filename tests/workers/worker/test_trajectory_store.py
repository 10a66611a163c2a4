"""Trajectory storage: stored files are read back, runs stay separate, errors have a reason."""

import errno
import hashlib
import os
import secrets
from pathlib import Path

import fsspec
import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from plimsoll.core.errors import TrajectoryError, UsageError
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.trajectories.records import Opened
from plimsoll.trajectories.trajectory_file import TrajectoryWriter
from plimsoll.workers.worker.trajectory_store import (
    TrajectoryStore,
    check_writable,
    read_blob,
    read_stored,
)

PICTURE = secrets.token_bytes(100_000)
NAME = hashlib.sha256(PICTURE).hexdigest()
ADDRESS = f"blob:sha256:{NAME};image/png"


@pytest.fixture(params=["own", "folder", "memory"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path of a stored trajectory that refers to an image."""
    run = tmp_path / "run"
    (run / "blobs").mkdir(parents=True)
    (run / "blobs" / NAME).write_bytes(PICTURE)
    url = {"own": None, "folder": str(tmp_path / "far"), "memory": f"memory://{tmp_path}"}
    blob = run / "blobs" / NAME
    TrajectoryWriter(run / "trial", Opened("s", 0.0, {})).seal([blob])
    store = TrajectoryStore(url[request.param], run, "night-1")
    return RunDirectory(run).stored(store.keep(run / "trial", "g/0.1", [blob]))


def test_a_stored_image_can_be_read(stored: str):
    assert stored.endswith("trajectories/g_0.1.jsonl.zst")
    assert read_blob(stored, ADDRESS) == PICTURE


def test_a_changed_image_is_rejected(stored: str):
    storage, inside = url_to_fs(stored)
    path = f"{Path(inside).parent.parent}/blobs/{NAME}"
    storage.pipe_file(path, b"another")
    with pytest.raises(TrajectoryError, match="was changed after it was written"):
        read_blob(stored, ADDRESS)
    storage.rm_file(path)
    with pytest.raises(TrajectoryError, match="cannot be read"):
        read_blob(stored, ADDRESS)


@pytest.mark.parametrize("address", ["blob:sha256:../../etc/passwd", "https://example.org/a.png"])
def test_only_addresses_of_blobs_are_read(stored: str, address: str):
    with pytest.raises(TrajectoryError, match="is not the address of a blob"):
        read_blob(stored, address)


class Stormy(MemoryFileSystem):
    """A file system with its own class of errors."""

    protocol = "stormy"
    cachable = False

    def put_file(self, _lpath: str, rpath: str) -> None:
        raise Disconnected(f"no answer about {rpath}")

    def pipe_file(self, *_: object) -> None:
        raise Disconnected("no answer")

    get_file = pipe_file


class Disconnected(Exception):
    pass


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """A run's trial folder with a trajectory."""
    fsspec.register_implementation("stormy", Stormy, clobber=True)
    TrajectoryWriter(tmp_path / "run" / "trial", Opened("s", 0.0, {})).seal([])
    return tmp_path / "run" / "trial"


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_runs_with_a_shared_storage_do_not_overwrite_each_other(tmp_path: Path, scheme: str):
    written: dict[str, bytes] = {}
    for run in ("a", "b"):
        TrajectoryWriter(tmp_path / run, Opened(f"of {run}", 0.0, {})).seal([])
        content = (tmp_path / run / "trajectory.jsonl.zst").read_bytes()
        store = TrajectoryStore(f"{scheme}{tmp_path}/far/", tmp_path / run, run)
        written[store.keep(tmp_path / run, "0-0/0.0")] = content
    assert len(written) == 2
    for path, content in written.items():
        storage, inside = url_to_fs(path)
        assert storage.cat_file(inside) == content


def test_any_exception_of_a_storage_is_a_trajectory_error(trial: Path):
    store = TrajectoryStore("stormy://bucket", trial.parent, "night-1")
    reasons: set[str] = set()
    for ticket in ("0-0/0.0", "0-0/1.0"):
        with pytest.raises(TrajectoryError, match="Disconnected: no answer") as caught:
            store.keep(trial, ticket)
        assert isinstance(caught.value.__cause__, Disconnected)
        reasons.add(str(caught.value))
    assert len(reasons) == 1, "equal failures have equal reasons"
    assert list(trial.iterdir()), "a trajectory that cannot be stored stays"
    with pytest.raises(TrajectoryError, match="cannot be read"):
        read_stored("stormy://bucket/night-1/trajectories/0-0_0.0.jsonl.zst")


def test_a_full_disk_is_named_with_a_remedy(
    trial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalFileSystem, "put_file", full)
    store = TrajectoryStore(str(tmp_path / "far"), trial.parent, "night-1")
    with pytest.raises(TrajectoryError, match=r"the file system at /.* is full .*make room"):
        store.keep(trial, "0-0/0.0")


def test_an_unreadable_trajectory_is_an_error(trial: Path, tmp_path: Path):
    (trial / "trajectory.jsonl.zst").unlink()
    (trial / "trajectory.jsonl.zst").symlink_to("/proc/self/mem")
    with pytest.raises(TrajectoryError, match=r"cannot be stored at .*: Input/output error"):
        TrajectoryStore(str(tmp_path / "far"), trial.parent, "night-1").keep(trial, "0-0/0.0")


def test_unwritable_storage_is_detected_before_anything_is_stored(trial: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"/proc/nope cannot be written: .*name another storage"):
        check_writable("/proc/nope")
    with pytest.raises(UsageError, match="stormy://bucket cannot be written: Disconnected"):
        check_writable("stormy://bucket")
    with pytest.raises(UsageError, match="nowhere://bucket cannot be used"):
        check_writable("nowhere://bucket")
    check_writable(str(tmp_path / "far"))
    assert list((tmp_path / "far").iterdir()) == [], "the check left a file"


def test_storage_without_delete_permission_is_writable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "append only")

    monkeypatch.setattr(MemoryFileSystem, "rm_file", refuse)
    check_writable(f"memory://{tmp_path}")
