"""Folder digests: equal contents have equal digests, and any change changes the digest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plimsoll.tasks.folder_digest import digest_folders


def make(root: Path) -> Path:
    (root / "sub").mkdir(parents=True)
    (root / "test.sh").write_text("echo")
    (root / "sub/data").write_bytes(b"\0" * 10)
    (root / "link").symlink_to("test.sh")
    return root


def test_equal_folders_at_different_paths_have_equal_digests(tmp_path: Path):
    first, second = make(tmp_path / "a"), make(tmp_path / "b")
    assert digest_folders([first]) == digest_folders([second])
    assert len(digest_folders([first])) == 64


def rename(root: Path) -> None:
    (root / "sub/data").rename(root / "sub/datb")


def relink(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("sub")


def link_to_file(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").write_text("test.sh")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "test.sh").write_text("echp"),
        lambda root: (root / "test.sh").chmod(0o755),
        lambda root: (root / "new").write_text(""),
        lambda root: (root / "empty").mkdir(),
        rename,
        relink,
        link_to_file,
    ],
)
def test_every_change_changes_the_digest(tmp_path: Path, change: Callable[[Path], object]):
    root = make(tmp_path / "a")
    before = digest_folders([root])
    change(root)
    assert digest_folders([root]) != before


def test_times_and_other_mode_bits_do_not_count(tmp_path: Path):
    root = make(tmp_path / "a")
    before = digest_folders([root])
    (root / "test.sh").chmod(0o600)
    (root / "sub/data").touch()
    assert digest_folders([root]) == before


def test_later_folders_overlay_earlier_ones(tmp_path: Path):
    base, over, merged = make(tmp_path / "a"), tmp_path / "o", make(tmp_path / "m")
    over.mkdir()
    (over / "test.sh").write_text("other")
    (merged / "test.sh").write_text("other")
    assert digest_folders([base, over]) == digest_folders([merged])
    assert digest_folders([over, base]) != digest_folders([base, over])


def test_a_file_that_replaces_a_folder_removes_its_contents(tmp_path: Path):
    base, over = make(tmp_path / "a"), tmp_path / "o"
    over.mkdir()
    (over / "sub").write_text("now a file")
    merged = make(tmp_path / "m")
    (merged / "sub/data").unlink()
    (merged / "sub").rmdir()
    (merged / "sub").write_text("now a file")
    assert digest_folders([base, over]) == digest_folders([merged])


def test_a_missing_folder_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        digest_folders([tmp_path / "gone"])
