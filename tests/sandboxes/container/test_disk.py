"""Reports of a sandbox about the disk under it."""

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
    return Disk(lambda left: f"the disk of the daemon is full: {left}")


async def _status(init, sandbox: ContainerSandbox, **fields: object) -> SandboxStatus:
    asked = asyncio.create_task(sandbox.status())
    _, number, _ = await init.next(Kind.STATUS)
    init.end(number, processes=0, **fields)
    return await asked


async def test_a_full_disk_is_reported_with_time_and_reason(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    before = asyncio.get_running_loop().time()
    status = await _status(init, sandbox, **ROOM)
    assert status.full_disk is None
    status = await _status(init, sandbox, **{**ROOM, "disk_available": 2_000_000})
    assert status.full_disk is not None
    assert status.full_disk.at >= before
    assert status.full_disk.why == (
        "the disk of the daemon is full: 2.0 MB were left at the last check"
    )
    # Free space does not clear an earlier failure.
    again = await _status(init, sandbox, **ROOM)
    assert again.full_disk == status.full_disk


async def test_sandboxes_on_one_disk_report_the_same(start_fake, disk: Disk):
    init, _, one = await start_fake(disk)
    other_init, _, other = await start_fake(disk)
    one.check_disk()
    _, number, _ = await init.next(Kind.STATUS)
    init.end(number, processes=0, **{**ROOM, "disk_available": 1})
    status = await _status(other_init, other, **ROOM)
    assert status.full_disk is not None


async def test_an_exhausted_quota_is_not_a_full_disk(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk, quota_mb=1024)
    status = await _status(init, sandbox, **{**ROOM, "disk_size": GB, "disk_available": 0})
    assert status.full_disk is None
    # A driver that reports the whole disk still shows a full disk.
    status = await _status(init, sandbox, **{**ROOM, "disk_available": 1})
    assert status.full_disk is not None


async def test_an_init_that_writes_as_root_may_use_reserved_blocks(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    kept = {**ROOM, "disk_available": 0}
    assert (await _status(init, sandbox, **kept, disk_as_root=1)).full_disk is None
    assert (await _status(init, sandbox, **kept, disk_as_root=0)).full_disk is not None


async def test_a_disk_without_free_inodes_is_full(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    assert (await _status(init, sandbox, **ROOM)).full_disk is None
    assert (await _status(init, sandbox, **{**ROOM, "disk_files": 0})).full_disk is not None


async def test_a_status_without_disk_fields_is_no_full_disk(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    assert (await _status(init, sandbox)).full_disk is None


async def test_a_disk_check_of_an_ending_sandbox_is_ignored(start_fake, disk: Disk):
    init, _, sandbox = await start_fake(disk)
    sandbox.check_disk()
    await init.next(Kind.STATUS)
    init.end_stream()
    await asyncio.sleep(0.1)
    status = await sandbox.status()
    assert (status.alive, status.full_disk) == (False, None)


@pytest.mark.parametrize(("quota", "first"), [(None, "the disk of the daemon"), (64, "upload")])
async def test_an_upload_to_a_full_disk_names_the_disk(
    start_fake, disk: Disk, tmp_path: Path, quota: int | None, first: str
):
    init, _, sandbox = await start_fake(disk, quota_mb=quota)
    (tmp_path / "file").write_text("x")
    going = asyncio.create_task(sandbox.upload(tmp_path / "file", "/x"))
    _, number, _ = await init.next(Kind.UNPACK)
    init.end(number, error="x: No space left on device")
    with pytest.raises(NoRoom, match=rf"^{first}.* of .*No space left on device$"):
        await going
