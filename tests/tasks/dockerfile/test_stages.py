"""Build stages: the files that instructions add to an image."""

from pathlib import Path

from plimsoll.tasks.dockerfile.stages import Copy, RemoteAdd, read_build


def test_an_add_of_a_url_and_a_file_is_a_download_and_a_copy(tmp_path: Path):
    file = tmp_path / "Dockerfile"
    file.write_text("FROM debian\nWORKDIR /app\nADD https://example.org/a.tar b.txt data/\n")

    (stage,) = read_build(file, tmp_path, "Dockerfile").stages

    assert stage.additions == [RemoteAdd("https://example.org/a.tar", "/app/data/a.tar", 3)]
    assert stage.copies == [Copy(("b.txt",), "/app/data", None)]
