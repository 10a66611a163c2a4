"""Engines that stop, crash, freeze and run full: each ends sandboxes with its reason, in time."""

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
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are shorter than in real life, so that tests are."""
    monkeypatch.setattr(api, "_PING_INTERVAL", 0.5)
    monkeypatch.setattr(api, "_PING_SECONDS", 1.0)
    monkeypatch.setattr(docker_container, "_WHY_SECONDS", 2.0)
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


async def _containers(engine: Daemon) -> int:
    return len(await engine.containers("plimsoll.run=test"))


async def test_an_engine_that_restarts_ends_its_sandboxes_and_serves_the_next(dockerd: Dockerd):
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
        assert await _containers(docker.engine) == 0


async def test_what_closes_while_the_engine_restarts_is_removed_when_it_is_back(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        await asyncio.to_thread(dockerd.stop)
        closing = asyncio.create_task(made.close())
        await asyncio.sleep(1.0)
        assert not closing.done()
        await asyncio.to_thread(dockerd.start)
        await closing
        assert await _containers(docker.engine) == 0


@pytest.mark.usefixtures("impatient")
async def test_what_could_not_be_removed_is_removed_later_and_before_the_end(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        await asyncio.to_thread(dockerd.stop)
        with pytest.raises(SandboxUnavailable, match=f"{made.id} could not be removed"):
            await made.close()
        await asyncio.to_thread(dockerd.start)
        deadline = time.monotonic() + 60
        while await _containers(docker.engine):
            assert time.monotonic() < deadline, "it is still there"
            await asyncio.sleep(0.2)


async def test_the_disk_is_looked_at_from_a_sandbox_that_lives(
    dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
):
    noted: list[DiskSpace] = []
    monkeypatch.setattr(Disk, "note", lambda _, space: noted.append(space))
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await asyncio.gather(*(docker.create(image, spec()) for _ in range(4)))
        for dead in made[1:]:
            await docker.engine.remove(dead.id)
            with pytest.raises(SandboxUnavailable):
                await dead.exec("true")
        noted.clear()
        for _ in range(20):
            await docker._look_at_disk()
        await until(lambda: len(noted) >= 20, 20)
        await asyncio.gather(*(each.close() for each in made))


async def test_an_engine_that_crashes_ends_its_sandboxes(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        running = await _running(made)
        dockerd.signal(signal.SIGKILL)
        await _fails(running, "restarted or is gone")
        await asyncio.to_thread(dockerd.restart)
        await made.close()
        assert await _containers(docker.engine) == 0


@pytest.mark.usefixtures("impatient")
async def test_an_engine_that_is_gone_for_good_is_left_in_time(dockerd: Dockerd):
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
    said = backend.warnings[-1]  # of one of two: the other was about to be made
    assert re.search(r"the container plimsoll-\w+ could not be removed.*, and 1 more; ", said)
    assert "cannot be reached" in said
    assert "`plimsoll clean test` removes what is left" in said
    await asyncio.to_thread(dockerd.start)
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        await docker.engine.remove(made.id)


@pytest.mark.usefixtures("impatient")
async def test_an_engine_that_freezes_ends_its_sandboxes_in_time(dockerd: Dockerd):
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
    await backend.__aexit__(None, None, None)  # what could not be removed then is removed now
    async with Daemon(backend.engine.endpoint) as engine:
        assert await _containers(engine) == 0


@pytest.mark.usefixtures("impatient")
async def test_an_engine_that_freezes_for_a_moment_harms_nobody(dockerd: Dockerd):
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


async def test_a_sandbox_that_the_kernel_killed_for_memory_says_so(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec(limits=Limits(memory_mb=16)))
        # What stands in /dev/shm is memory that no death of a process frees.
        fill = "head -c 64M /dev/zero > /dev/shm/x"
        with pytest.raises(SandboxUnavailable, match=r"for memory.*16 MB"):
            for _ in range(40):
                await made.exec(fill, timeout=20)
        await made.close()


async def test_a_command_that_is_killed_for_memory_leaves_the_sandbox_alive(dockerd: Dockerd):
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
def _engine_on(dockerd: Dockerd, *mount: str) -> Iterator[Dockerd]:
    """An engine like another, on a disk of its own."""
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
    """An engine with a small disk."""
    with _engine_on(dockerd, "-t", "tmpfs", "-o", "size=40m", "tmpfs") as made:
        yield made


@pytest.fixture
def reserving(dockerd: Dockerd, tmp_path: Path) -> Iterator[Dockerd]:
    """An engine with a disk of which some 38 MB are kept for root."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "30", image], check=True)
    with _engine_on(dockerd, "-o", "loop", str(image)) as made:
        yield made


async def test_a_full_disk_of_the_engine_is_named(small: Dockerd, tmp_path: Path):
    async with DockerBackend(DockerOptions(host=small.url)) as docker:
        (init,) = [name for row in await docker.engine.images() for name in row.repo_tags or ()]
        image = await docker.build(ImageSource(reference=init))
        made = await docker.create(image, spec())
        (tmp_path / "big").write_bytes(b"x" * (100 << 20))  # holes would take no room
        full = r"the disk of the Docker engine at .* is full; make room.*No space left"
        with pytest.raises(TransferError, match=full):
            await made.upload(tmp_path / "big", "/big")
        assert (await made.status()).alive
        with pytest.raises(SandboxUnavailable, match=r"disk of the Docker engine.*is full"):
            for _ in range(100):  # a container that never writes takes very little
                await docker.create(image, spec())
        await made.close()
        other = await docker.create(image, spec())
        await other.close()


async def test_a_disk_that_was_full_for_some_seconds_is_told_afterwards(small: Dockerd):
    async with DockerBackend(DockerOptions(host=small.url)) as docker:
        (init,) = [name for row in await docker.engine.images() for name in row.repo_tags or ()]
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
            assert f"the disk of the Docker engine at {small.url} is full; make room" in full.why
        await one.close()
        await other.close()


async def test_a_disk_with_room_only_for_root_is_not_full_until_that_is_used_up(
    reserving: Dockerd,
):
    async with DockerBackend(DockerOptions(host=reserving.url)) as docker:
        (init,) = [name for row in await docker.engine.images() for name in row.repo_tags or ()]
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
