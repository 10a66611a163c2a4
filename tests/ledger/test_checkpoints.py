"""Checkpoints: complete or absent, wherever the process was killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from driven_run import settings

from plimsoll.core.errors import LedgerError
from plimsoll.core.versions import FIRST_VERSION, Lineages, Version
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.checkpoints import Checkpoint, Checkpoints
from plimsoll.ledger.events import RolledBack


def save(content: str):
    def write(folder: Path) -> None:
        (folder / "weights.bin").write_text(content)
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "optimizer.bin").write_text(content * 100)

    return write


def at(number: int, lineage: int = 0) -> Version:
    return Version(lineage, number)


def write(checkpoints: Checkpoints, number: int) -> Checkpoint:
    return checkpoints.write(at(number), number * 10, save(f"v{number}"), Lineages())


def books_at(version: Version) -> Books:
    books = Books()
    books.settings = settings()
    books.version = version
    return books


def chosen(checkpoints: Checkpoints, books: Books) -> Checkpoint | None:
    """The checkpoint that a run continues from: the newest that fits and is unchanged."""
    whole = (made for made in checkpoints.restorable(books) if not checkpoints.verify(made))
    return next(whole, None)


def test_a_manifest_has_the_files_and_the_ledger_position(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "made")
    made = checkpoints.write(at(3), 42, save("x"), Lineages(), {"rng": "abc", "epoch": 2})
    assert checkpoints.all() == [made]
    assert (made.version, made.position, made.state) == (at(3), 42, {"rng": "abc", "epoch": 2})
    assert set(made.files) == {"weights.bin", "deep/er/optimizer.bin"}
    assert (checkpoints.path(made) / "weights.bin").read_text() == "x"
    assert checkpoints.verify(made) == []


def test_a_changed_or_missing_file_is_found(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    made = write(checkpoints, 1)
    (checkpoints.path(made) / "weights.bin").write_text("V1")
    assert checkpoints.verify(made) == ["weights.bin"]
    (checkpoints.path(made) / "weights.bin").unlink()
    assert checkpoints.verify(made) == ["weights.bin"]
    assert checkpoints.all() == []


def test_at_least_two_checkpoints_must_be_kept(tmp_path: Path):
    with pytest.raises(LedgerError, match="at least 2 must be"):
        Checkpoints(tmp_path, keep=1)
    checkpoints = Checkpoints(tmp_path)
    for number in range(1, 6):
        write(checkpoints, number)
    assert [made.version.number for made in checkpoints.all()] == [4, 5]
    assert len(list(tmp_path.iterdir())) == 4
    three = Checkpoints(tmp_path, keep=3)
    for number in range(6, 9):
        write(three, number)
    assert [made.version.number for made in three.all()] == [6, 7, 8]


def test_checkpoints_of_abandoned_lineages_do_not_count(tmp_path: Path):
    """Version 3 was unreadable, and the run continued from 2: both of the new lineage stay."""
    checkpoints = Checkpoints(tmp_path)
    for number in (1, 2, 3):
        write(checkpoints, number)
    lineages = Lineages()
    lineages.branch(1, at(2))
    checkpoints.write(at(3, lineage=1), 99, save("again"), lineages)
    assert [made.version for made in checkpoints.all()] == [at(2), at(3, lineage=1)]


def test_the_latest_checkpoint_fits_the_books(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=9)
    for number in (1, 2, 3):
        write(checkpoints, number)
    assert chosen(checkpoints, books_at(at(5))) == checkpoints.all()[-1]
    assert chosen(checkpoints, books_at(at(2))) == checkpoints.all()[1]
    assert chosen(Checkpoints(tmp_path / "none"), books_at(at(5))) is None
    books = books_at(at(3))
    books.apply(RolledBack(number=0, parent=at(1), version=at(1, lineage=1)))
    # 2 and 3 are of the abandoned lineage.
    assert chosen(checkpoints, books) == checkpoints.all()[0]


@pytest.mark.parametrize("left", ["folder", "part", "torn", "misnamed", "no files"])
def test_an_incomplete_checkpoint_is_never_chosen(tmp_path: Path, left: str):
    checkpoints = Checkpoints(tmp_path)
    whole = write(checkpoints, 1)
    made = write(checkpoints, 2)
    manifest = tmp_path / f"{made.name}.json"
    match left:
        case "folder":
            manifest.unlink()
        case "part":
            manifest.rename(manifest.with_suffix(".part"))
        case "torn":
            manifest.write_bytes(manifest.read_bytes()[:40])
        case "misnamed":
            manifest.rename(tmp_path / "v0-00000009.json")
        case _:
            (checkpoints.path(made) / "weights.bin").unlink()
    assert chosen(checkpoints, books_at(at(5))) == whole
    again = write(checkpoints, 2)
    assert chosen(checkpoints, books_at(at(5))) == again
    assert checkpoints.verify(again) == []


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    whole = write(checkpoints, 1)

    def fail(folder: Path) -> None:
        (folder / "weights.bin").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(LedgerError, match=r"cannot write .*No space left.*the last one stays"):
        checkpoints.write(at(2), 0, fail, Lineages())
    assert chosen(checkpoints, books_at(at(5))) == whole


KILLED = """
import os, signal, sys
from pathlib import Path
from plimsoll.ledger.checkpoints import Checkpoints
from plimsoll.core.versions import Lineages, Version

left = int(sys.argv[2])
armed = False

def count(event, args):
    global left, armed
    if armed and event.split(".")[0] in ("open", "os", "shutil", "pathlib"):
        left -= 1
        if left < 0:
            armed = False
            os.kill(os.getpid(), signal.SIGKILL)

def save(folder):
    (folder / "a").write_text("a" * 1000)
    (folder / "b").write_text("b" * 1000)

checkpoints = Checkpoints(Path(sys.argv[1]))
for number in (1, 2):
    checkpoints.write(Version(0, number), number, save, Lineages())
sys.addaudithook(count)
armed = True
checkpoints.write(Version(0, 3), 3, save, Lineages())
armed = False
"""


def test_a_kill_at_any_point_of_a_write_leaves_two_complete_checkpoints(tmp_path: Path):
    """Killed once at each system call that opens, renames or removes a file."""
    seen: set[int] = set()
    for step in range(200):
        folder = tmp_path / str(step)
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(step)], check=False)
        checkpoints = Checkpoints(folder)
        known = checkpoints.all()
        assert len(known) >= 2
        assert all(checkpoints.verify(made) == [] for made in known)
        latest = chosen(checkpoints, books_at(at(9)))
        assert latest is not None
        seen.add(latest.version.number)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert (done.returncode, seen) == (0, {2, 3})
    assert step > 10


def test_checkpoint_names_sort_by_version(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=9)
    for number in (9, 10, 100):
        write(checkpoints, number)
    assert [made.version.number for made in checkpoints.all()] == [9, 10, 100]
    assert FIRST_VERSION < at(9) < at(9, lineage=1)


def test_the_next_write_removes_partial_files_of_a_crash(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 1)
    half = tmp_path / "v0-00000002"
    half.mkdir()
    (half / "weights.bin").write_text("half")
    (tmp_path / "notes").mkdir()
    checkpoints.write(at(2, 1), 20, save("x"), _branched(at(1)))
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "v0-00000001",
        "v1-00000002",
        "notes",
    }


def _branched(parent: Version) -> Lineages:
    lineages = Lineages()
    lineages.branch(1, parent)
    return lineages


@pytest.mark.parametrize(
    ("version", "is_missing"),
    [(at(4), True), (at(2, 1), False), (at(3, 1), True), (at(0, 2), True), (at(9), False)],
)
def test_a_checkpoint_beyond_the_books_shows_that_events_are_missing(
    tmp_path: Path, version: Version, is_missing: bool
):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(version, 10, save("x"), Lineages())
    books = books_at(at(2))
    if version.lineage == 1 or version == at(9):
        # An abandoned lineage may have reached any number.
        books.lineages.branch(1, at(1))
        books.version = at(2, 1)
    assert bool(checkpoints.beyond(books)) is is_missing
