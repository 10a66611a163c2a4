"""Leftovers of a killed process: the next process removes them, and nothing else."""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll.core.ids import Owner
from plimsoll.sandboxes.host.locks import process_lock, remove_stale_locks
from plimsoll.sandboxes.host.owners import is_dead_owner_tag, owner_tag, this_process
from plimsoll.sandboxes.host.temporary import leftovers, make_temporary_folder, remove_leftovers
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.testing.waiting import until

LIVES = """
import asyncio, sys, time
from pathlib import Path
from plimsoll.sandboxes.host.locks import process_lock
from plimsoll.sandboxes.host.temporary import make_temporary_folder

async def main():
    async with process_lock(Path(sys.argv[1]) / "key"):
        print(make_temporary_folder(), flush=True)
        time.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this test and its processes."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def start(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a temporary folder and holds a lock in `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIVES, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_the_folder_of_a_killed_process_is_removed_by_the_next(temporary: Path, tmp_path: Path):
    process, folder = start(tmp_path)
    (folder / "file").write_text("x")
    remove_leftovers()
    assert folder.exists()
    kill(process)
    assert leftovers() == [folder]
    remove_leftovers()
    assert list(temporary.iterdir()) == []


def test_foreign_folders_and_links_to_folders_stay(temporary: Path, tmp_path: Path):
    mine = make_temporary_folder()
    process, left = start(tmp_path)
    kill(process)
    others = temporary / "plimsoll-not-ours"
    others.mkdir()
    link = temporary / f"{left.name}-"
    link.symlink_to(tmp_path)
    remove_leftovers()
    assert {path.name for path in temporary.iterdir()} == {mine.name, others.name, link.name}


def test_an_owner_is_recognized_by_its_tag():
    me = this_process()
    boot, _, ticks = me.started.partition(":")
    assert not is_dead_owner_tag(owner_tag(me))
    assert is_dead_owner_tag(owner_tag(replace(me, started=f"{boot}:{int(ticks) + 1}")))
    assert is_dead_owner_tag(
        owner_tag(replace(me, started=f"{boot[::-1]}:{ticks}"))
    )  # before the host's restart
    assert is_dead_owner_tag(owner_tag(replace(me, pid=2**22 + 1)))
    assert not is_dead_owner_tag(owner_tag(Owner("another~01234567", 1, "boot:1")))
    assert not is_dead_owner_tag("")
    assert not is_dead_owner_tag("x" * 20)


async def test_stale_locks_are_removed_and_held_locks_stay(temporary: Path, tmp_path: Path):
    del temporary
    locks = tmp_path / "locks"
    locks.mkdir()
    process, _ = start(locks)
    remove_stale_locks(locks)
    assert [file.name for file in locks.iterdir()] == ["key"]
    kill(process)
    remove_stale_locks(locks)
    assert list(locks.iterdir()) == []


async def test_a_lock_whose_file_was_removed_has_one_holder(tmp_path: Path):
    file, running, most = tmp_path / "key", 0, 0

    async def work() -> None:
        nonlocal running, most
        async with process_lock(file):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
        remove_stale_locks(tmp_path)

    await asyncio.gather(*(work() for _ in range(20)))
    assert most == 1


async def test_a_starting_backend_removes_leftovers_of_a_killed_one(
    temporary: Path, tmp_path: Path
):
    home = tmp_path / "home"
    async with LocalBackend(LocalOptions(home=home)):
        pass
    process, folder = start(home / "locks")
    kill(process)
    assert folder.exists()
    async with LocalBackend(LocalOptions(home=home)):
        assert list(temporary.iterdir()) == []
        assert list((home / "locks").iterdir()) == []


async def test_a_lock_is_waited_for(tmp_path: Path, temporary: Path):
    del temporary
    process, _ = start(tmp_path)
    began = time.monotonic()
    waits: list[float] = []

    async def wait() -> bool:
        async with process_lock(tmp_path / "key", lambda: waits.append(time.monotonic())) as waited:
            return waited

    waiting = asyncio.create_task(wait())
    await until(lambda: bool(waits))
    kill(process)
    assert await asyncio.wait_for(waiting, 30)
    assert waits[0] >= began
