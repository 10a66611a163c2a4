"""What a sandbox in a container tells of the disk under it."""

import asyncio
from pathlib import Path

import pytest

from plimsoll.core.errors import NoRoom
from plimsoll.sandboxes.container.frames import Kind
from plimsoll.sandboxes.container.sandbox import ContainerSandbox
from plimsoll.sandboxes.host.disk_space import Disk
from plimsoll.sandboxes.protocol import SandboxStatus

GB = 1 << 30
ROOM = {"disk_size": 9 * GB, "disk_free": GB, "disk_available": GB, "disk_files": 9}


@pytest.fixture
def disk() -> Disk:
    return Disk(lambda left: f"the disk of the engine is full: {left}")


async def _status(init, sandbox: ContainerSandbox, **said: object) -> SandboxStatus:
    asked = asyncio.create_task(sandbox.status())
    _, number, _ = await init.next(Kind.STATUS)
    init.end(number, processes=0, **said)
    return await asked


async def test_a_disk_without_room_is_told_with_when_and_why(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    before = asyncio.get_running_loop().time()
    status = await _status(init, sandbox, **ROOM)
    assert status.full_disk is None
    status = await _status(init, sandbox, **{**ROOM, "disk_available": 2_000_000})
    assert status.full_disk is not None
    assert status.full_disk.at >= before
    assert status.full_disk.why == (
        "the disk of the engine is full: 2.0 MB were left at the last check"
    )
    # That there is room again does not undo what failed before.
    again = await _status(init, sandbox, **ROOM)
    assert again.full_disk == status.full_disk


async def test_the_sandboxes_of_one_disk_tell_of_it_alike(start_fake, disk: Disk):
    init, _, one = await start_fake(disk)
    other_init, _, other = await start_fake(disk)
    one.look_at_disk()
    _, number, _ = await init.next(Kind.STATUS)
    init.end(number, processes=0, **{**ROOM, "disk_available": 1})
    status = await _status(other_init, other, **ROOM)
    assert status.full_disk is not None


async def test_a_quota_of_the_sandboxs_own_that_is_used_up_is_not_a_full_disk(
    start_fake, disk: Disk
):
    init, _, sandbox = await start_fake(disk, quota_mb=1024)
    status = await _status(init, sandbox, **{**ROOM, "disk_size": GB, "disk_available": 0})
    assert status.full_disk is None
    # Nor does it hide the disk itself, where the driver tells of that.
    status = await _status(init, sandbox, **{**ROOM, "disk_available": 1})
    assert status.full_disk is not None


async def test_an_init_that_writes_as_root_may_use_what_is_kept_for_root(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    kept = {**ROOM, "disk_available": 0}
    assert (await _status(init, sandbox, **kept, disk_as_root=1)).full_disk is None
    assert (await _status(init, sandbox, **kept, disk_as_root=0)).full_disk is not None


async def test_a_disk_without_room_for_a_file_is_full(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    assert (await _status(init, sandbox, **ROOM)).full_disk is None
    assert (await _status(init, sandbox, **{**ROOM, "disk_files": 0})).full_disk is not None


async def test_an_init_that_does_not_tell_of_its_disk_is_no_full_disk(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    assert (await _status(init, sandbox)).full_disk is None


async def test_a_look_at_the_disk_of_a_sandbox_that_goes_is_nothing(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    sandbox.look_at_disk()
    await init.next(Kind.STATUS)
    init.hang_up()
    await asyncio.sleep(0.1)
    status = await sandbox.status()
    assert (status.alive, status.full_disk) == (False, None)


@pytest.mark.parametrize(("quota", "first"), [(None, "the disk of the engine"), (64, "upload")])
async def test_an_upload_without_room_names_the_disk(
    start_fake, disk: Disk, tmp_path: Path, quota: int | None, first: str
):
    init, _, sandbox = await start_fake(disk, quota_mb=quota)
    (tmp_path / "file").write_text("x")
    going = asyncio.create_task(sandbox.upload(tmp_path / "file", "/x"))
    _, number, _ = await init.next(Kind.UNPACK)
    init.end(number, error="x: No space left on device")
    with pytest.raises(NoRoom, match=rf"^{first}.* of .*No space left on device$"):
        await going
