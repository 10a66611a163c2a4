"""The home of the local backend: closed to others, without changing folders of a person."""

import os
import stat
from pathlib import Path

import pytest

from parts import need, spec
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.protocol import ImageSource

CLOSED = ("bases", "layers", "sandboxes", "locks")
FOLDERS = (*CLOSED, "mounts")


def modes(home: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folders_with_files_of_agents_are_closed_to_others(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        Home.open(tmp_path / "deep/home")
    finally:
        os.umask(before)
    assert modes(tmp_path / "deep/home") == dict.fromkeys(FOLDERS, 0o700)
    assert stat.S_IMODE((tmp_path / "deep/home").stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [0o1777, 0o755, 0o711])
def test_an_existing_home_keeps_its_mode(tmp_path: Path, mode: int):
    tmp_path.chmod(mode)
    Home.open(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
    assert modes(tmp_path) == dict.fromkeys(FOLDERS, 0o700)


@pytest.mark.parametrize("again", [False, True])
def test_an_open_folder_of_a_person_is_refused_and_not_changed(tmp_path: Path, again: bool):
    mine = tmp_path / "sandboxes"
    mine.mkdir()
    mine.chmod(0o755)
    for _ in range(1 + again):
        with pytest.raises(SandboxUnavailable, match=f"chmod 700 {mine} .* PLIMSOLL_HOME"):
            Home.open(tmp_path)
    assert modes(tmp_path) == {"sandboxes": 0o755}


def test_open_folders_that_plimsoll_created_are_closed(tmp_path: Path):
    for name in CLOSED:
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    Home.open(tmp_path)
    assert modes(tmp_path) == dict.fromkeys(FOLDERS, 0o700)


def test_a_folder_of_another_user_is_refused(tmp_path: Path):
    need("root", None if os.geteuid() == 0 else "only root can give a folder away")
    Home.open(tmp_path)
    os.chown(tmp_path / "layers", 12345, 12345)
    with pytest.raises(SandboxUnavailable, match="user 12345"):
        Home.open(tmp_path)


async def test_no_other_user_reaches_a_program_of_an_agent(tmp_path: Path):
    """A set-user-ID program would run as its owner for everyone who can reach it."""
    async with LocalBackend(LocalOptions(home=tmp_path, upper="disk")) as backend:
        sandbox = await backend.create(
            await backend.build(ImageSource(reference="debian:12")), spec()
        )
        made = await sandbox.exec("cp /bin/true /root/tool && chmod 4755 /root/tool")
        assert made.ok
        (tool,) = (path for path in tmp_path.rglob("tool") if path.lstat().st_mode & stat.S_ISUID)
        assert not (tmp_path / tool.relative_to(tmp_path).parts[0]).stat().st_mode & 0o077
        await sandbox.exec("cp /root/tool /tool2; chmod 6755 /tool2")
        await sandbox.download("/tool2", tmp_path / "kept")
        assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o755
        await sandbox.close()
