"""When a disk is full for those who write to it."""

import os
from pathlib import Path

import pytest

from plimsoll.sandboxes.host.disk_space import Disk, DiskSpace, FolderDisk

MB = 1 << 20
GB = 1 << 30


def full(*seen: DiskSpace) -> str:
    """What is said of a disk that was like this, one look after the other."""
    disk = Disk(lambda left: left)
    for space in seen:
        disk.note(space)
    return "" if disk.full is None else disk.full.why


def root(size: int, free: int, available: int, files: int | None = 9) -> DiskSpace:
    return DiskSpace(size, free, available, files, as_root=True)


def test_a_disk_whose_last_part_is_kept_for_root_is_full_for_others():
    assert full(DiskSpace(100 * GB, 5 * GB, 7 * MB, 9)).startswith("7.3 MB were left")
    assert full(DiskSpace(100 * GB, 5 * GB, 9 * MB, 9)) == ""


def test_a_disk_is_not_full_for_root_until_its_part_is_used_up():
    assert full(root(100 * GB, 5 * GB, 0)) == ""
    assert full(root(100 * GB, 200 * MB, 0)).startswith("0.0 MB were left")
    assert full(root(1000 * MB, 29 * MB, 0)) == ""
    assert full(root(1000 * MB, 27 * MB, 0)).startswith("7.3 MB were left")


def test_a_disk_that_keeps_nothing_for_root_is_full_when_it_is():
    assert full(root(100 * GB, 9 * MB, 9 * MB)) == ""
    assert full(root(100 * GB, 7 * MB, 7 * MB)).startswith("7.3 MB were left")


def test_what_a_file_system_needs_itself_is_not_taken_for_roots_part():
    """As one that has bytes for files and none for what it knows of them."""
    assert full(root(100 * GB, 5 * GB, 0, files=None)).startswith("0.0 MB were left")


@pytest.mark.parametrize("as_root", [True, False])
def test_a_disk_that_has_no_room_from_the_first_look_on_is_full(as_root: bool):
    """With root's part all but used up nothing was ever there for others, and it still tells."""
    assert full(DiskSpace(1000 * MB, 15 * MB, 0, 9, as_root=as_root))


def test_a_disk_without_room_for_one_more_file_is_full():
    room = DiskSpace(9 * GB, GB, GB, 1)
    assert full(room, DiskSpace(9 * GB, GB, GB, 0)).startswith("no room for one more file was left")


def test_a_disk_that_never_tells_of_room_is_not_taken_for_full():
    """Of some file systems nobody knows; and sandboxes have been started on it."""
    nothing, some = DiskSpace(9 * GB, 0, 0, 0), DiskSpace(9 * GB, GB, GB, 1)
    assert full(nothing) == ""
    assert full(nothing, some) == ""
    assert full(nothing, some, nothing) != ""


def test_a_disk_that_tells_of_bytes_and_not_of_files_is_full_by_its_bytes():
    assert full(DiskSpace(9 * GB, GB, GB, 0)) == ""
    assert full(DiskSpace(9 * GB, GB, GB, 0), DiskSpace(9 * GB, MB, MB, 0)) != ""


def test_a_folder_tells_of_the_disk_that_it_is_on(tmp_path: Path):
    seen: list[DiskSpace] = []

    class Noted(FolderDisk):
        def note(self, space: DiskSpace) -> None:
            seen.append(space)

    Noted(tmp_path, str, as_root=True).look()
    (space,) = seen
    found = os.statvfs(tmp_path)
    assert space.size == found.f_blocks * found.f_frsize
    assert space.size >= space.free >= space.available
    assert (space.files is None) is (found.f_files == 0)
    assert space.as_root
    assert FolderDisk(tmp_path / "none", str).look() is None
