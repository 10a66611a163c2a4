"""The local inventory: removes leftovers of killed processes, and ends live sandboxes."""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import processes_with
from parts import need, spec
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.inventory import LocalInventory
from plimsoll.sandboxes.protocol import Backend, Image
from plimsoll.sandboxes.reaper import reap
from plimsoll.sandboxes.trees.removal import remove_folder
from plimsoll.testing.waiting import until
from sandbox_owner import SandboxOwner, running_owner

Left = Callable[..., list[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home for this test alone, so that it finds no sandboxes of others."""
    return tmp_path


@pytest.fixture
def inventory(tmp_path: Path, backend: Backend) -> LocalInventory:
    return LocalInventory(Home.open(tmp_path))


@pytest.fixture
def other(tmp_path: Path, backend: Backend) -> Iterator[SandboxOwner]:
    with running_owner(tmp_path, "other-run", 4) as found:
        yield found


async def test_running_sandboxes_are_listed_with_their_labels(
    inventory: LocalInventory, other: SandboxOwner, backend: Backend, image: Image
):
    mine = await backend.create(image, spec())
    found = {item.id: item for item in await inventory.items()}
    assert set(found) == {mine.id, *other.ids}
    assert {item.state for item in found.values()} == {"running"}
    assert found[mine.id].labels == mine.labels
    theirs = [found[name] for name in other.ids]
    assert [item.labels.ticket for item in theirs] == [f"task.{n}" for n in range(1, 5)]
    assert {item.labels.owner.pid for item in theirs} == {other.process.pid}
    await mine.close()


async def test_reaping_keeps_live_sandboxes(
    inventory: LocalInventory, other: SandboxOwner, tmp_path: Path, left: Left
):
    before = left(tmp_path, other.ids)
    assert (await reap(inventory)).removed == ()
    assert left(tmp_path, other.ids) == before
    assert other.process.poll() is None


async def test_leftovers_of_a_killed_process_are_reaped(
    inventory: LocalInventory, other: SandboxOwner, tmp_path: Path, left: Left
):
    other.kill()
    assert {item.state for item in await inventory.items()} == {"ended"}
    reaped = await reap(inventory)
    assert {item.id for item in reaped.removed} == set(other.ids)
    assert left(tmp_path, other.ids) == []
    await until(lambda: not processes_with(f"{other.mark}."))


@pytest.mark.parametrize("groups", [True, False])
async def test_a_live_sandbox_that_is_removed_really_ends_and_others_go_on(
    inventory: LocalInventory, other: SandboxOwner, tmp_path: Path, left: Left, groups: bool
):
    victim, *others = other.ids
    hidden: list[str] = []
    if not groups:  # as on hosts without writable control groups
        meta = tmp_path / "sandboxes" / victim / "meta.json"
        content = json.loads(meta.read_text())
        hidden += content["cgroups"].values()
        meta.write_text(json.dumps(content | {"cgroups": {}}))
    assert other.running(1)
    (item,) = [item for item in await inventory.items() if item.id == victim]
    await inventory.remove(item)
    assert other.running(1) == []
    assert not (tmp_path / "sandboxes" / victim).exists()
    assert other.process.stdout is not None
    line = await asyncio.to_thread(other.process.stdout.readline)
    assert line.startswith("task.1 is gone: ")
    assert {item.id for item in await inventory.items()} == set(others)
    assert all(other.running(ticket) for ticket in (2, 3, 4))
    await inventory.remove(item)  # it is gone already
    for group in hidden:
        Path(group).rmdir()


async def test_a_sandbox_removed_by_another_process_is_unavailable_and_closes(
    inventory: LocalInventory, backend: Backend, image: Image, tmp_path: Path, left: Left
):
    mine = await backend.create(image, spec())
    running = asyncio.create_task(mine.exec("sleep 600"))
    await asyncio.sleep(0.1)
    (item,) = await inventory.items()
    await inventory.remove(item)
    with pytest.raises(SandboxUnavailable):
        await asyncio.wait_for(running, 60)
    await mine.close()
    await until(lambda: left(tmp_path, [mine.id]) == [])


async def test_expired_sandboxes_are_removed_once_their_owner_is_dead(
    inventory: LocalInventory, other: SandboxOwner, tmp_path: Path
):
    meta = tmp_path / "sandboxes" / other.ids[0] / "meta.json"
    content = json.loads(meta.read_text())
    content["labels"]["expires"] = time.time() - 1
    meta.write_text(json.dumps(content))
    assert (await reap(inventory)).removed == ()
    assert other.running(1)
    other.kill()
    reaped = await reap(inventory)
    assert sorted(item.id for item in reaped.removed) == sorted(other.ids)


async def test_incomplete_folders_stay_for_a_minute(inventory: LocalInventory, tmp_path: Path):
    new, old = (tmp_path / "sandboxes" / name for name in ("0000000001", "0000000002"))
    base = tmp_path / "bases" / ".0000000003"
    for folder in (new, old, base):
        folder.mkdir()
        (folder / "half").write_text("x")
    for folder in (old, base):
        os.utime(folder, (time.time() - 120,) * 2)
    await reap(inventory)
    assert new.exists()
    assert not old.exists()
    assert not base.exists()


async def test_a_missing_home_is_empty(tmp_path: Path):
    assert await LocalInventory(Home(tmp_path / "none")).items() == []


def test_concurrent_removals_of_one_folder_succeed(tmp_path: Path):
    async def both(folder: Path) -> None:
        await asyncio.gather(*(asyncio.to_thread(remove_folder, folder) for _ in range(2)))

    for number in range(20):
        folder = tmp_path / f"{number}"
        for path in range(200):
            (folder / f"{path % 7}" / f"{path}").mkdir(parents=True)
        asyncio.run(both(folder))
        assert not folder.exists()


def _set(attribute: str, *files: Path) -> bool:
    return subprocess.run(["chattr", attribute, *files], check=False).returncode == 0


@pytest.mark.slow  # waits for the retries
async def test_a_failed_removal_names_the_path(
    tmp_path: Path, other: SandboxOwner, inventory: LocalInventory
):
    need("root", None if shutil.which("chattr") else "there is no chattr")
    other.kill()
    stuck = tmp_path / "sandboxes" / other.ids[0] / "meta.json"
    immutable = _set("+i", stuck)
    need("root", None if immutable else "this file system knows no immutable files")
    try:
        reaped = await reap(inventory)
        assert {item.id for item in reaped.removed} == set(other.ids[1:])
        assert [failure.resource.id for failure in reaped.failed] == other.ids[:1]
        assert "cannot be removed" in reaped.failed[0].reason
        # The next backend starts all the same.
        async with LocalBackend(LocalOptions(home=tmp_path)):
            pass
    finally:
        # The reaper has renamed the folder. An immutable file would stay, and break pytest's own
        # removal of old temporary folders.
        assert _set("-i", *(tmp_path / "sandboxes").rglob(stuck.name))
