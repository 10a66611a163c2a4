"""Daemons that stop, crash, freeze or run full: sandboxes end with the reason, in time."""

import asyncio
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from parts import spec
from plimsoll.core.errors import SandboxUnavailable, TransferError
from plimsoll.sandboxes.docker import backend as backend_module
from plimsoll.sandboxes.docker import docker_container
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.docker.daemon import api
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.host.disk_space import Disk, DiskSpace
from plimsoll.sandboxes.protocol import ImageSource, Limits, Sandbox
from plimsoll.testing.waiting import until

pytestmark = pytest.mark.timeout(300)


class Dockerd(Protocol):
    url: str
    folder: Path

    def __init__(self, folder: Path) -> None: ...

    def remove(self) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...

    def signal(self, number: signal.Signals) -> None: ...


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter time limits, for quick tests."""
    monkeypatch.setattr(api, "_PING_INTERVAL", 0.5)
    monkeypatch.setattr(api, "_PING_SECONDS", 1.0)
    monkeypatch.setattr(docker_container, "_REASON_SECONDS", 2.0)
    monkeypatch.setattr(docker_container, "_REMOVE_SECONDS", 6.0)
    monkeypatch.setattr(backend_module, "_RETRY_EVERY", 0.5)


async def _fails(running: "asyncio.Task[object]", words: str) -> None:
    with pytest.raises(SandboxUnavailable, match=words):
        await asyncio.wait_for(running, 60)


async def _running(sandbox: Sandbox) -> "asyncio.Task[object]":
    task: asyncio.Task[object] = asyncio.create_task(sandbox.exec("echo on; sleep 600"))
    await asyncio.sleep(0.3)
    assert not task.done()
    return task


async def _containers(daemon: Daemon) -> int:
    return len(await daemon.containers("plimsoll.run=test"))


async def test_a_daemon_restart_ends_sandboxes_and_later_starts_work(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        running = await _running(made)
        await asyncio.to_thread(dockerd.stop)
        await _fails(running, "restarted or is gone")
        assert "restarted or is gone" in (await made.status()).reason
        await asyncio.to_thread(dockerd.start)
        other = await docker.create(image, spec())
        assert (await other.exec("echo on")).stdout.text == "on\n"
        await asyncio.gather(made.close(), other.close())
        assert await _containers(docker.daemon) == 0


async def test_a_sandbox_closed_during_a_restart_is_removed_after_it(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        await asyncio.to_thread(dockerd.stop)
        closing = asyncio.create_task(made.close())
        await asyncio.sleep(1.0)
        assert not closing.done()
        await asyncio.to_thread(dockerd.start)
        await closing
        assert await _containers(docker.daemon) == 0


@pytest.mark.usefixtures("short_limits")
async def test_failed_removals_are_retried_and_done_at_the_end(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        await asyncio.to_thread(dockerd.stop)
        with pytest.raises(SandboxUnavailable, match=f"{made.id} could not be removed"):
            await made.close()
        await asyncio.to_thread(dockerd.start)
        deadline = time.monotonic() + 60
        while await _containers(docker.daemon):
            assert time.monotonic() < deadline, "the container was not removed"
            await asyncio.sleep(0.2)


async def test_the_disk_is_checked_through_a_living_sandbox(
    dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
):
    noted: list[DiskSpace] = []
    monkeypatch.setattr(Disk, "note", lambda _, space: noted.append(space))
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await asyncio.gather(*(docker.create(image, spec()) for _ in range(4)))
        for dead in made[1:]:
            await docker.daemon.remove(dead.id)
            with pytest.raises(SandboxUnavailable):
                await dead.exec("true")
        noted.clear()
        for _ in range(20):
            await docker._check_disk()
        await until(lambda: len(noted) >= 20, 20)
        await asyncio.gather(*(each.close() for each in made))


async def test_a_daemon_crash_ends_its_sandboxes(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        running = await _running(made)
        dockerd.signal(signal.SIGKILL)
        await _fails(running, "restarted or is gone")
        await asyncio.to_thread(dockerd.restart)
        await made.close()
        assert await _containers(docker.daemon) == 0


@pytest.mark.usefixtures("short_limits")
async def test_leaving_the_backend_of_a_dead_daemon_takes_bounded_time(dockerd: Dockerd):
    backend = DockerBackend(DockerOptions(host=dockerd.url, wait_seconds=6.0))
    await backend.__aenter__()
    image = await backend.build(ImageSource(reference="debian:12"))
    made = await backend.create(image, spec())
    await asyncio.to_thread(dockerd.stop)
    with pytest.raises(SandboxUnavailable):
        await made.exec("true")
    with pytest.raises(SandboxUnavailable):
        await backend.create(image, spec())
    started = time.monotonic()
    await backend.__aexit__(None, None, None)
    assert time.monotonic() - started < 60
    warning = backend.warnings[-1]  # one of two sandboxes; the other was not created yet
    assert re.search(r"the container plimsoll-\w+ could not be removed.*, and 1 more; ", warning)
    assert "cannot be reached" in warning
    assert "`plimsoll clean test` removes the rest" in warning
    await asyncio.to_thread(dockerd.start)
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        await docker.daemon.remove(made.id)


@pytest.mark.usefixtures("short_limits")
async def test_a_frozen_daemon_ends_its_sandboxes_in_time(dockerd: Dockerd):
    backend = DockerBackend(DockerOptions(host=dockerd.url))
    await backend.__aenter__()
    image = await backend.build(ImageSource(reference="debian:12"))
    made = await backend.create(image, spec())
    running = await _running(made)
    dockerd.signal(signal.SIGSTOP)
    try:
        await _fails(running, "hangs|does not answer")
        with pytest.raises(SandboxUnavailable, match="removed"):
            await asyncio.wait_for(made.close(), 60)
    finally:
        dockerd.signal(signal.SIGCONT)
    await backend.__aexit__(None, None, None)  # removes the rest
    async with Daemon(backend.daemon.endpoint) as daemon:
        assert await _containers(daemon) == 0


@pytest.mark.usefixtures("short_limits")
async def test_a_short_freeze_of_the_daemon_is_harmless(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        running = asyncio.create_task(made.exec("sleep 2; echo on"))
        await asyncio.sleep(0.3)
        dockerd.signal(signal.SIGSTOP)
        await asyncio.sleep(1.5)
        dockerd.signal(signal.SIGCONT)
        assert (await running).stdout.text == "on\n"
        await made.close()


async def test_a_sandbox_killed_for_memory_reports_it(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec(limits=Limits(memory_mb=16)))
        # Files in /dev/shm are memory that outlives processes.
        fill = "head -c 64M /dev/zero > /dev/shm/x"
        with pytest.raises(SandboxUnavailable, match=r"for memory.*16 MB"):
            for _ in range(40):
                await made.exec(fill, timeout=20)
        await made.close()


async def test_a_command_killed_for_memory_leaves_the_sandbox_alive(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec(limits=Limits(memory_mb=64)))
        done = await made.exec(["python3", "-c", "x = bytearray(200 << 20)"], timeout=30)
        assert done.signal == 9
        status = await made.status()
        assert status.alive
        assert status.oom_kills
        await made.close()


@contextmanager
def _daemon_on(dockerd: Dockerd, *mount: str) -> Iterator[Dockerd]:
    """A daemon with its data on a separate disk."""
    made = type(dockerd)(Path(tempfile.mkdtemp(prefix="plimsoll-dockerd-", dir="/var/tmp")))
    try:
        (made.folder / "data-root").mkdir()
        subprocess.run(["mount", *mount, made.folder / "data-root"], check=True)
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture
def small(dockerd: Dockerd) -> Iterator[Dockerd]:
    """A daemon with a small disk."""
    with _daemon_on(dockerd, "-t", "tmpfs", "-o", "size=40m", "tmpfs") as made:
        yield made


@pytest.fixture
def reserving(dockerd: Dockerd, tmp_path: Path) -> Iterator[Dockerd]:
    """A daemon with a disk of which about 38 MB are reserved for root."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "30", image], check=True)
    with _daemon_on(dockerd, "-o", "loop", str(image)) as made:
        yield made


async def test_a_full_disk_of_the_daemon_is_named(small: Dockerd, tmp_path: Path):
    async with DockerBackend(DockerOptions(host=small.url)) as docker:
        (init,) = [name for row in await docker.daemon.images() for name in row.repo_tags or ()]
        image = await docker.build(ImageSource(reference=init))
        made = await docker.create(image, spec())
        (tmp_path / "big").write_bytes(b"x" * (100 << 20))  # a sparse file would take no space
        full = r"the disk of the Docker daemon at .* is full; free space.*No space left"
        with pytest.raises(TransferError, match=full):
            await made.upload(tmp_path / "big", "/big")
        assert (await made.status()).alive
        with pytest.raises(SandboxUnavailable, match=r"disk of the Docker daemon.*is full"):
            for _ in range(100):  # a container that never writes needs very little space
                await docker.create(image, spec())
        await made.close()
        other = await docker.create(image, spec())
        await other.close()


async def test_a_disk_that_was_full_briefly_is_reported_afterwards(small: Dockerd):
    async with DockerBackend(DockerOptions(host=small.url)) as docker:
        (init,) = [name for row in await docker.daemon.images() for name in row.repo_tags or ()]
        image = await docker.build(ImageSource(reference=init))
        one, other = await docker.create(image, spec()), await docker.create(image, spec())
        began = time.monotonic()
        assert (await one.status()).full_disk is None
        fill = small.folder / "data-root" / "fill"
        with fill.open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))
        await until(lambda: docker._disk.full, 60)
        fill.unlink()
        for made in (one, other):
            full = (await made.status()).full_disk
            assert full is not None
            assert began < full.at < time.monotonic()
            assert f"the disk of the Docker daemon at {small.url} is full; free space" in full.why
        await one.close()
        await other.close()


async def test_a_disk_is_full_only_after_the_reserved_blocks_are_used(
    reserving: Dockerd,
):
    async with DockerBackend(DockerOptions(host=reserving.url)) as docker:
        (init,) = [name for row in await docker.daemon.images() for name in row.repo_tags or ()]
        image = await docker.build(ImageSource(reference=init))
        made = await docker.create(image, spec())
        disk = reserving.folder / "data-root"
        with (disk / "fill").open("wb", buffering=0) as file:
            while os.statvfs(disk).f_bavail:
                file.write(bytes(4096))
            os.fsync(file.fileno())
            assert (await made.status()).full_disk is None
            with pytest.raises(OSError):
                while True:
                    file.write(bytes(4096))
        assert (await made.status()).full_disk is not None
        (disk / "fill").unlink()
        await made.close()
