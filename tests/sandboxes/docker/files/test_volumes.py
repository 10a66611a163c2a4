"""Files for a daemon that does not see this host's: copied once and completely."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest

from parts import spec
from plimsoll.core.ids import Labels, Owner, short_id
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.labels import from_docker, is_shared, to_docker
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import Image, ImageSource, Mount, Sandbox, Supplies


class TlsDaemon(Protocol):
    url: str
    certificates: Path


@pytest.fixture
def options(tls_daemon: TlsDaemon) -> DockerOptions:
    return DockerOptions(host=tls_daemon.url, certificates=tls_daemon.certificates)


@pytest.fixture
async def docker(options: DockerOptions) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(options) as started:
        yield started


@pytest.fixture
async def image(docker: DockerBackend) -> Image:
    return await docker.build(ImageSource(reference="debian:12"))


@pytest.fixture
async def assets(docker: DockerBackend, tmp_path: Path) -> AsyncIterator[Path]:
    """A folder with unique content; its volumes are removed after the test."""
    before = await _volumes(docker.daemon)
    folder = tmp_path / "assets"
    (folder / "sub").mkdir(parents=True)
    (folder / "unique").write_text(short_id())
    (folder / "sub/run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "sub/run.sh").chmod(0o755)
    (folder / "link").symlink_to("sub/run.sh")
    (folder / "big").write_bytes(b"x" * 3_000_001)
    yield folder
    for name in await _volumes(docker.daemon) - before:
        for row in await docker.daemon.containers():
            if any(mount.name == name for mount in row.mounts):
                await docker.daemon.remove(row.id)
        await docker.daemon.remove_volume(name)


async def _volumes(daemon: Daemon) -> set[str]:
    return {row.name for row in await daemon.volumes() if row.name.startswith("plimsoll-assets-")}


async def _output(sandbox: Sandbox, command: str) -> str:
    done = await sandbox.exec(command)
    assert done.ok, done.complaint()
    return done.stdout.text


async def _check(sandbox: Sandbox, assets: Path) -> None:
    unique = (assets / "unique").read_text()
    shown = "cat /a/unique; /a/link; stat -c '%s' /a/big; ls -A /a | tr '\\n' ' '"
    assert await _output(sandbox, shown) == f"{unique}ran\n3000001\nbig link sub unique "


async def test_a_folder_is_copied_once_and_is_read_only(
    docker: DockerBackend, image: Image, assets: Path
):
    before = await _volumes(docker.daemon)
    for _ in range(2):
        made = await docker.create(image, spec(mounts=(Mount(assets, "/a"),)))
        try:
            await _check(made, assets)
            for path in ("/a/new", "/a/unique", "/.plimsoll/init"):
                done = await made.exec(f"echo x > {path}")
                assert "Read-only" in done.stderr.text
        finally:
            await made.close()
    (name,) = await _volumes(docker.daemon) - before
    volume = await docker.daemon.volume(name)
    assert volume is not None
    assert is_shared(volume.labels)
    assert from_docker(volume.labels) is not None


async def test_staged_assets_are_named_by_their_key_and_files_are_copied(
    docker: DockerBackend, image: Image, assets: Path
):
    supplies = Supplies(
        mounts=(
            Mount(assets, "/a"),
            Mount(assets / "sub", "/checkout", unless_there=True),
            Mount(assets / "sub", "/usr/bin", unless_there=True),
            Mount(assets / "unique", "/etc/new/unique"),
        ),
        key=short_id(),
    )
    made = await docker.create(image, spec(supplies=supplies))
    try:
        await _check(made, assets)
        unique = (assets / "unique").read_text()
        assert await _output(made, "cat /etc/new/unique; ls /checkout") == f"{unique}run.sh\n"
        assert (await made.exec("ls /usr/bin/python3")).ok
    finally:
        await made.close()


async def test_other_content_is_another_volume(docker: DockerBackend, image: Image, assets: Path):
    for word in ("one", "two"):
        (assets / "unique").write_text(word)
        made = await docker.create(image, spec(mounts=(Mount(assets, "/a"),)))
        try:
            await _check(made, assets)
        finally:
            await made.close()


async def test_two_backends_may_fill_one_volume_concurrently(
    docker: DockerBackend, image: Image, options: DockerOptions, assets: Path
):
    async with DockerBackend(options) as other:
        requested = spec(mounts=(Mount(assets, "/a"),))
        made = await asyncio.gather(
            *(backend.create(image, requested) for backend in (docker, other) for _ in range(2))
        )
        for sandbox in made:
            await _check(sandbox, assets)
            await sandbox.close()


async def test_a_volume_half_filled_by_a_dead_process_is_filled(
    docker: DockerBackend, image: Image, assets: Path
):
    before = await _volumes(docker.daemon)
    requested = spec(mounts=(Mount(assets, "/a"),))
    await (await docker.create(image, requested)).close()
    (name,) = await _volumes(docker.daemon) - before
    await docker.__aexit__(None, None, None)
    await docker.__aenter__()
    daemon = docker.daemon
    await daemon.remove_volume(name)
    owner = Owner(this_process().host, 2**22 + 1, "long ago")
    labels = to_docker(Labels("shared", name, owner, time.time() + 600))
    await daemon.create_volume(name, {**labels, "plimsoll.shared": "yes"})
    mount = {"Type": "volume", "Source": name, "Target": "/held"}
    lock = {
        "Image": "debian:12",
        "Cmd": ["true"],
        "Labels": labels,
        "HostConfig": {"Mounts": [mount]},
    }
    await daemon.create_container(lock, f"{name}-filling")
    made = await docker.create(image, requested)
    try:
        await _check(made, assets)
    finally:
        await made.close()


async def test_a_volume_in_use_is_held_and_released(options: DockerOptions, assets: Path):
    async with DockerBackend(options) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        before = await _volumes(docker.daemon)
        made = await docker.create(image, spec(mounts=(Mount(assets, "/a"),)))
        await made.close()
        new = await _volumes(docker.daemon) - before
        holders = await _holders(docker.daemon, new)
        assert holders  # without a sandbox, it must still be kept
    async with Daemon(docker.daemon.endpoint) as daemon:
        assert not await _holders(daemon, new)


async def test_a_volume_removed_during_a_run_is_filled_again(
    docker: DockerBackend, image: Image, assets: Path
):
    """As by a prune: the daemon itself would create an empty volume in its place."""
    before = await _volumes(docker.daemon)
    requested = spec(mounts=(Mount(assets, "/a"),))
    await (await docker.create(image, requested)).close()
    (name,) = await _volumes(docker.daemon) - before
    for holder in await _holders(docker.daemon, {name}):
        await docker.daemon.remove(holder)
    assert await docker.daemon.remove_volume(name)
    made = await asyncio.gather(*(docker.create(image, requested) for _ in range(3)))
    for sandbox in made:
        await _check(sandbox, assets)
        await sandbox.close()
    volume = await docker.daemon.volume(name)
    assert volume is not None
    assert is_shared(volume.labels)  # so it is reaped after expiry
    assert await _holders(docker.daemon, {name})


async def test_a_volume_without_labels_is_replaced_when_unused(
    options: DockerOptions, docker: DockerBackend, image: Image, assets: Path
):
    before = await _volumes(docker.daemon)
    requested = spec(mounts=(Mount(assets, "/a"),))
    await (await docker.create(image, requested)).close()
    (name,) = await _volumes(docker.daemon) - before
    for holder in await _holders(docker.daemon, {name}):
        await docker.daemon.remove(holder)
    await docker.daemon.remove_volume(name)
    mount = {"Type": "volume", "Source": name, "Target": "/held"}
    config = {"Image": "debian:12", "Cmd": ["true"], "HostConfig": {"Mounts": [mount]}}
    user = await docker.daemon.create_container(config, f"plimsoll-test-{short_id()}")
    async with DockerBackend(options) as other:
        asyncio.get_running_loop().call_later(
            1, lambda: asyncio.ensure_future(docker.daemon.remove(user))
        )
        made = await other.create(image, requested)
        await _check(made, assets)
        await made.close()
        volume = await docker.daemon.volume(name)
        assert volume is not None
        assert is_shared(volume.labels)


async def test_a_mount_point_that_is_a_link_is_no_lost_volume(
    docker: DockerBackend, image: Image, assets: Path
):
    made = await docker.create(image, spec(mounts=(Mount(assets, "/var/lock"),)))
    try:
        assert await _output(made, "cat /run/lock/unique") == (assets / "unique").read_text()
    finally:
        await made.close()


async def _holders(daemon: Daemon, volumes: set[str]) -> list[str]:
    rows = await daemon.containers()
    return [row.id for row in rows if any(mount.name in volumes for mount in row.mounts)]
