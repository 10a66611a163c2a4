"""The local inventory: what killed processes left goes, and a live sandbox really ends."""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults import until
from helpers import processes_with
from living import Living, living
from parts import need, spec
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.inventory import LocalInventory
from plimsoll.sandboxes.protocol import Backend, Image
from plimsoll.sandboxes.reaper import reap
from plimsoll.sandboxes.trees.removal import remove_folder

Left = Callable[..., list[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of the test's own, so that what it finds there is its own."""
    return tmp_path


@pytest.fixture
def inventory(tmp_path: Path, backend: Backend) -> LocalInventory:
    return LocalInventory(Home.open(tmp_path))


@pytest.fixture
def other(tmp_path: Path, backend: Backend) -> Iterator[Living]:
    with living(tmp_path, "other-run", 4) as found:
        yield found


async def test_what_runs_is_listed_with_its_labels(
    inventory: LocalInventory, other: Living, backend: Backend, image: Image
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


async def test_reaping_leaves_the_living_alone(
    inventory: LocalInventory, other: Living, tmp_path: Path, left: Left
):
    before = left(tmp_path, other.ids)
    assert (await reap(inventory)).removed == ()
    assert left(tmp_path, other.ids) == before
    assert other.process.poll() is None


async def test_what_a_killed_process_left_is_reaped(
    inventory: LocalInventory, other: Living, tmp_path: Path, left: Left
):
    other.kill()
    assert {item.state for item in await inventory.items()} == {"ended"}
    reaped = await reap(inventory)
    assert {item.id for item in reaped.removed} == set(other.ids)
    assert left(tmp_path, other.ids) == []
    await until(lambda: not processes_with(f"{other.mark}."))


@pytest.mark.parametrize("groups", [True, False])
async def test_a_live_sandbox_that_is_removed_really_ends_and_others_go_on(
    inventory: LocalInventory, other: Living, tmp_path: Path, left: Left, groups: bool
):
    victim, *others = other.ids
    if not groups:  # as where control groups cannot be written
        meta = tmp_path / "sandboxes" / victim / "meta.json"
        known = json.loads(meta.read_text())
        meta.write_text(json.dumps(known | {"cgroups": {}}))
    assert other.running(1)
    (item,) = [item for item in await inventory.items() if item.id == victim]
    await inventory.remove(item)
    assert other.running(1) == []
    assert not (tmp_path / "sandboxes" / victim).exists()
    assert other.process.stdout is not None
    said = await asyncio.to_thread(other.process.stdout.readline)
    assert said.startswith("task.1 is gone: ")
    assert {item.id for item in await inventory.items()} == set(others)
    assert all(other.running(ticket) for ticket in (2, 3, 4))
    await inventory.remove(item)  # it is gone already


async def test_a_sandbox_taken_from_its_owner_is_unavailable_and_closes_well(
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


async def test_what_is_past_its_expiry_goes_but_not_before_its_owner(
    inventory: LocalInventory, other: Living, tmp_path: Path
):
    meta = tmp_path / "sandboxes" / other.ids[0] / "meta.json"
    known = json.loads(meta.read_text())
    known["labels"]["expires"] = time.time() - 1
    meta.write_text(json.dumps(known))
    assert (await reap(inventory)).removed == ()
    assert other.running(1)
    other.kill()
    reaped = await reap(inventory)
    assert sorted(item.id for item in reaped.removed) == sorted(other.ids)


async def test_what_was_never_finished_is_left_to_its_maker_for_a_minute(
    inventory: LocalInventory, tmp_path: Path
):
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


async def test_a_home_that_is_not_there_yet_is_empty(tmp_path: Path):
    assert await LocalInventory(Home(tmp_path / "none")).items() == []


def test_two_who_remove_one_folder_both_end_well(tmp_path: Path):
    async def both(folder: Path) -> None:
        await asyncio.gather(*(asyncio.to_thread(remove_folder, folder) for _ in range(2)))

    for number in range(20):
        folder = tmp_path / f"{number}"
        for path in range(200):
            (folder / f"{path % 7}" / f"{path}").mkdir(parents=True)
        asyncio.run(both(folder))
        assert not folder.exists()


def _set(file: Path, attribute: str) -> bool:
    return subprocess.run(["chattr", attribute, file], check=False).returncode == 0


async def test_what_cannot_be_removed_is_an_error_that_names_it(
    tmp_path: Path, other: Living, inventory: LocalInventory
):
    need("root", None if shutil.which("chattr") else "there is no chattr")
    other.kill()
    stuck = tmp_path / "sandboxes" / other.ids[0] / "meta.json"
    immutable = _set(stuck, "+i")
    need("root", None if immutable else "this file system knows no immutable files")
    try:
        reaped = await reap(inventory)
        assert {item.id for item in reaped.removed} == set(other.ids[1:])
        assert [failure.resource.id for failure in reaped.failed] == other.ids[:1]
        assert "cannot be removed" in reaped.failed[0].reason
        # Nor does it keep the next one from starting.
        async with LocalBackend(LocalOptions(home=tmp_path)):
            pass
    finally:
        _set(stuck, "-i")
