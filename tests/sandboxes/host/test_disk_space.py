"""Detection of full disks."""

import os
from pathlib import Path

import pytest

from plimsoll.sandboxes.host.disk_space import Disk, DiskSpace, FolderDisk

MB = 1 << 20
GB = 1 << 30


def full(*seen: DiskSpace) -> str:
    """The message for a disk with these figures, checked in order."""
    disk = Disk(lambda left: left)
    for space in seen:
        disk.note(space)
    return "" if disk.full is None else disk.full.why


def root(size: int, free: int, available: int, files: int | None = 9) -> DiskSpace:
    return DiskSpace(size, free, available, files, as_root=True)


def test_space_reserved_for_root_is_not_free_for_others():
    assert full(DiskSpace(100 * GB, 5 * GB, 7 * MB, 9)).startswith("7.3 MB were left")
    assert full(DiskSpace(100 * GB, 5 * GB, 9 * MB, 9)) == ""


def test_root_can_use_the_reserved_space():
    assert full(root(100 * GB, 5 * GB, 0)) == ""
    assert full(root(100 * GB, 200 * MB, 0)).startswith("0.0 MB were left")
    assert full(root(1000 * MB, 29 * MB, 0)) == ""
    assert full(root(1000 * MB, 27 * MB, 0)).startswith("7.3 MB were left")


def test_without_reserved_space_all_free_bytes_count():
    assert full(root(100 * GB, 9 * MB, 9 * MB)) == ""
    assert full(root(100 * GB, 7 * MB, 7 * MB)).startswith("7.3 MB were left")


def test_space_the_file_system_needs_is_not_reserved_space():
    """For example a file system with free bytes for data and none for metadata."""
    assert full(root(100 * GB, 5 * GB, 0, files=None)).startswith("0.0 MB were left")


@pytest.mark.parametrize("as_root", [True, False])
def test_a_disk_that_is_full_at_the_first_check_is_full(as_root: bool):
    """Only a little of the reserved space is left, and no check ever saw available bytes."""
    assert full(DiskSpace(1000 * MB, 15 * MB, 0, 9, as_root=as_root))


def test_a_disk_without_free_inodes_is_full():
    room = DiskSpace(9 * GB, GB, GB, 1)
    assert full(room, DiskSpace(9 * GB, GB, GB, 0)).startswith("no free inode was left")


def test_a_disk_that_never_reports_free_space_is_not_full():
    """Some file systems do not report free space, though sandboxes start on them."""
    nothing, some = DiskSpace(9 * GB, 0, 0, 0), DiskSpace(9 * GB, GB, GB, 1)
    assert full(nothing) == ""
    assert full(nothing, some) == ""
    assert full(nothing, some, nothing) != ""


def test_a_disk_that_counts_no_inodes_is_full_by_bytes():
    assert full(DiskSpace(9 * GB, GB, GB, 0)) == ""
    assert full(DiskSpace(9 * GB, GB, GB, 0), DiskSpace(9 * GB, MB, MB, 0)) != ""


def test_a_folder_reports_its_disk(tmp_path: Path):
    seen: list[DiskSpace] = []

    class Noted(FolderDisk):
        def note(self, space: DiskSpace) -> None:
            seen.append(space)

    Noted(tmp_path, str, as_root=True).check()
    (space,) = seen
    found = os.statvfs(tmp_path)
    assert space.size == found.f_blocks * found.f_frsize
    assert space.size >= space.free >= space.available
    assert (space.files is None) is (found.f_files == 0)
    assert space.as_root
    assert FolderDisk(tmp_path / "none", str).check() is None
