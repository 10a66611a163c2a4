import base64
import hashlib
import os
from pathlib import Path

import pytest
from recording_parts import Talk, assistant, user

from plimsoll.core.errors import TrajectoryError
from plimsoll.trajectories import blobs as blobs_module
from plimsoll.trajectories.blobs import MAX_INLINE_CHARS, blob_path, media_type
from plimsoll.trajectories.messages import Image
from plimsoll.trajectories.trajectory_file import PART_NAME

A = assistant("nice")
PICTURE = os.urandom(MAX_INLINE_CHARS)


def address(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


async def image_of(talk: Talk) -> str:
    trajectory = await talk.close()
    part = trajectory.messages_of(trajectory.exchanges[0])[0].parts[1]
    assert isinstance(part, Image)
    return part.url


async def test_a_large_image_is_stored_as_a_file_named_by_its_content(talk: Talk, tmp_path: Path):
    talk.ask(user("look", Image(address(PICTURE))), answer=A)
    url = await image_of(talk)
    name = hashlib.sha256(PICTURE).hexdigest()
    assert url == f"blob:sha256:{name};image/png"
    assert media_type(url) == "image/png"
    path = blob_path(url, tmp_path / "blobs")
    assert path == tmp_path / "blobs" / name
    assert path.read_bytes() == PICTURE
    assert [one.name for one in (tmp_path / "blobs").iterdir()] == [name]


async def test_an_image_is_written_once_however_often_it_is_shown(talk: Talk, tmp_path: Path):
    shown = user("look", Image(address(PICTURE)))
    talk.ask(shown, answer=A)
    (file,) = (tmp_path / "blobs").iterdir()
    before = file.stat().st_mtime_ns
    second = talk.ask(shown, A, user("again", Image(address(PICTURE))), answer=A)
    assert second.branch == "extends"
    assert [one.stat().st_mtime_ns for one in (tmp_path / "blobs").iterdir()] == [before]
    assert (talk.folder / PART_NAME).stat().st_size < MAX_INLINE_CHARS


@pytest.mark.parametrize(
    "url",
    [
        address(b"small"),
        "https://example.org/" + "a" * MAX_INLINE_CHARS,
        "data:image/png;base64,!" + "A" * MAX_INLINE_CHARS,
        "data:image/svg+xml," + "a" * MAX_INLINE_CHARS,
    ],
    ids=["small", "elsewhere", "not base64", "text"],
)
async def test_any_other_image_stays_inline(talk: Talk, tmp_path: Path, url: str):
    talk.ask(user("look", Image(url)), answer=A)
    assert await image_of(talk) == url
    assert not (tmp_path / "blobs").exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "0" * 63, "0" * 64 + "/..", "G" * 64])
def test_a_blob_url_names_nothing_outside_the_folder(tmp_path: Path, name: str):
    assert blob_path(f"blob:sha256:{name}", tmp_path) is None
    assert blob_path("https://example.org", tmp_path) is None


async def test_a_blob_that_cannot_be_written_is_reported_and_leaves_no_file(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(blobs_module.os, "replace", fail)
    with pytest.raises(TrajectoryError, match="no space left"):
        talk.ask(user("look", Image(address(PICTURE))), answer=A)
    assert list((tmp_path / "blobs").iterdir()) == []
    with pytest.raises(TrajectoryError, match="no space left"):
        await talk.recorder.close("submitted")
