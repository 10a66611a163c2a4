"""Location of a ledger: found after moves, never confused with another, never on a network."""

import shutil
from pathlib import Path

import msgspec
import pytest

from plimsoll.core.errors import LedgerError, UsageError
from plimsoll.core.file_systems import file_system_type, is_networked
from plimsoll.ledger.journal import location
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.journal.location import POINTER, Location, find, has_ledger, make, run_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs/night 1"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything below `runs` and `net` is on a network file system."""

    def kind(path: Path) -> str:
        parts = path.resolve().relative_to(tmp_path.resolve()).parts
        return "nfs4" if parts[0] in ("runs", "net") else "ext4"

    monkeypatch.setattr(location, "file_system_type", kind)


def new_ledger(run: Path, folder: str | None, home: Path) -> Location:
    """The ledger of a new run, as the run makes it."""
    made = make(run, folder, home)
    Journal.create(made.ledger).close()
    made.publish()
    return made


def on_another_host(run: Path) -> None:
    """Make the run look as if it was started on another host."""
    pointer = msgspec.json.decode((run / POINTER).read_bytes())
    (run / POINTER).write_bytes(msgspec.json.encode({**pointer, "host": "gpu-7~00112233"}))


@pytest.mark.parametrize(
    ("kind", "networked"),
    [
        *((kind, True) for kind in ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs")),
        *((kind, True) for kind in ("9p", "ceph", "afs", "fuse", "fuse.sshfs", "fuse.juicefs")),
        *((kind, False) for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "")),
        *((kind, False) for kind in ("fuseblk", "fuse.fuse-overlayfs")),
    ],
)
def test_network_file_systems_are_recognized(kind: str, networked: bool):
    assert is_networked(kind) is networked


def test_the_file_system_of_a_missing_folder_is_found():
    assert file_system_type(Path("/proc/self")) == "proc"
    assert file_system_type(Path("/proc/there/is/no/such")) == "proc"


def test_the_ledger_is_in_a_run_directory_on_a_local_disk(run: Path, home: Path):
    made = new_ledger(run, None, home)
    assert (made.folder, made.description) == (run, "")
    assert find(run, None, home) == made
    assert not home.exists()


@pytest.mark.usefixtures("shared")
def test_the_ledger_of_a_run_on_a_network_file_system_is_local_and_can_be_found(
    run: Path, home: Path
):
    made = make(run, None, home)
    assert not has_ledger(run), "there is no run before its ledger"
    Journal.create(made.ledger).close()
    made.publish()
    assert made.folder.parent == home / "ledgers"
    assert made.folder.name.startswith("night_1-")
    assert has_ledger(run)
    assert find(run) == find(run, None, home) == made
    assert run_of(made.folder) == run.resolve()
    assert "the run directory is on nfs4" in find(run).description
    assert str(made.folder) in made.description
    made.discard()
    assert not has_ledger(run)
    assert not made.folder.exists()


@pytest.mark.usefixtures("shared")
def test_two_runs_with_the_same_name_have_separate_ledgers(run: Path, home: Path, tmp_path: Path):
    other = tmp_path / "runs/b/night 1"
    other.mkdir(parents=True)
    assert new_ledger(run, None, home).folder != new_ledger(other, None, home).folder


@pytest.mark.usefixtures("shared")
def test_the_second_run_in_one_directory_is_rejected(run: Path, home: Path):
    new_ledger(run, None, home)
    with pytest.raises(LedgerError, match="is a run already: another process began it"):
        make(run, None, home).publish()


@pytest.mark.usefixtures("shared")
def test_a_network_file_system_in_the_config_is_rejected(run: Path, home: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"\[storage\] ledger: .*net is on nfs4.*leave the key"):
        make(run, str(tmp_path / "net"), home)
    with pytest.raises(UsageError, match=r"is on nfs4 and .*net on nfs4.*\[storage\] ledger"):
        make(run, None, tmp_path / "net")
    assert make(run, str(tmp_path / "disk"), tmp_path / "net").folder.parent == tmp_path / "disk"


@pytest.mark.usefixtures("shared")
def test_a_run_directory_that_was_moved_keeps_its_ledger(run: Path, home: Path, tmp_path: Path):
    made = new_ledger(run, None, home)
    moved = run.rename(tmp_path / "runs/moved")
    assert find(moved).folder == made.folder
    assert run_of(made.folder) == run.resolve(), "reading changes nothing"
    assert find(moved, None, home).folder == made.folder
    assert run_of(made.folder) == moved.resolve()


@pytest.mark.usefixtures("shared")
def test_a_copied_run_directory_is_rejected_with_the_name_of_the_original(
    run: Path, home: Path, tmp_path: Path
):
    made = new_ledger(run, None, home)
    copy = Path(shutil.copytree(run, tmp_path / "runs/copy"))
    for drives in (None, home):
        with pytest.raises(LedgerError, match=r"copy is a copy of .*night 1, whose ledger is in"):
            find(copy, None, drives)
    assert find(run, None, home) == made
    (run / POINTER).unlink()  # as the message advises, so that the copy takes its place
    assert find(copy, None, home).folder == made.folder


@pytest.mark.usefixtures("shared")
def test_a_ledger_on_another_host_is_named_and_can_be_moved_here_once(
    run: Path, home: Path, tmp_path: Path
):
    made = new_ledger(run, None, home)
    there = made.folder.rename(tmp_path / "disk-of-gpu-7")
    on_another_host(run)
    moved_folder = home / "ledgers" / made.folder.name
    (run / POINTER).write_bytes((run / POINTER).read_bytes().replace(b"/home/", b"/srv/"))
    with pytest.raises(
        LedgerError, match=rf"is on gpu-7, in .*copy that folder to {moved_folder} on"
    ):
        find(run, None, home)
    shutil.copytree(there, moved_folder)
    assert find(run, None, home).folder == moved_folder
    assert find(run).folder == moved_folder
    # The ledger that stayed on the other host is outdated from now on.
    shutil.rmtree(moved_folder)
    shutil.copytree(there, moved_folder)
    with pytest.raises(LedgerError, match="is missing: it was in"):
        find(run, None, home)


@pytest.mark.usefixtures("shared")
def test_a_ledger_moves_only_with_its_folder(run: Path, home: Path, tmp_path: Path):
    made = new_ledger(run, None, home)
    disk = tmp_path / "disk"
    with pytest.raises(UsageError, match=rf"keeps its ledger where it began\. .*move .* to {disk}"):
        find(run, str(disk), home)
    disk.mkdir()
    moved = made.folder.rename(disk / made.folder.name)
    assert find(run, str(disk), home) == Location(run, moved, "[storage] ledger")
    inside = tmp_path / "inside"
    inside.mkdir()
    new_ledger(inside, None, home)
    with pytest.raises(UsageError, match="is in the run directory"):
        find(inside, str(disk), home)


def test_a_missing_ledger_is_never_recreated(run: Path, home: Path, tmp_path: Path):
    made = new_ledger(run, str(tmp_path / "disk"), home)
    shutil.rmtree(made.folder)
    with pytest.raises(LedgerError, match="Put that folder back from a copy"):
        find(run, str(tmp_path / "disk"), home)
