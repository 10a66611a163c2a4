"""Images that trajectories name are read back from wherever they are stored."""

import hashlib
import secrets
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from plimsoll.core.errors import TrajectoryError
from plimsoll.runs.storage import read_blob
from plimsoll.runs.storing import Store
from plimsoll.trajectories.records import Opened
from plimsoll.trajectories.writer import Writer

PICTURE = secrets.token_bytes(100_000)
NAME = hashlib.sha256(PICTURE).hexdigest()
ADDRESS = f"blob:sha256:{NAME};image/png"


@pytest.fixture(params=["own", "folder", "memory"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a trajectory is that names an image."""
    run = tmp_path / "run"
    (run / "blobs").mkdir(parents=True)
    (run / "blobs" / NAME).write_bytes(PICTURE)
    url = {"own": None, "folder": str(tmp_path / "far"), "memory": f"memory://{tmp_path}"}
    Writer(run / "trial", Opened("s", 0.0, {"shown": ADDRESS})).seal([])
    return Store(url[request.param], run).keep(run / "trial", "g/0.1").path


def test_an_image_is_read_back(stored: str):
    assert stored.endswith("trajectories/g_0.1.jsonl.zst")
    assert read_blob(stored, ADDRESS) == PICTURE


def test_an_image_that_is_not_what_was_stored_is_refused(stored: str):
    storage, inside = url_to_fs(stored)
    path = f"{Path(inside).parent.parent}/blobs/{NAME}"
    storage.pipe_file(path, b"another")
    with pytest.raises(TrajectoryError, match="was changed after it was written"):
        read_blob(stored, ADDRESS)
    storage.rm_file(path)
    with pytest.raises(TrajectoryError, match="cannot be read"):
        read_blob(stored, ADDRESS)


@pytest.mark.parametrize("address", ["blob:sha256:../../etc/passwd", "https://example.org/a.png"])
def test_only_the_address_of_a_blob_is_read(stored: str, address: str):
    with pytest.raises(TrajectoryError, match="is not the address of a blob"):
        read_blob(stored, address)
