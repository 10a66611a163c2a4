"""Images of Plimsoll are pruned by age and size, never while in use."""

import io
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.ids import short_id
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint
from plimsoll.sandboxes.docker.images.build_input import BUILD_LABEL
from plimsoll.sandboxes.docker.images.image_store import DockerImage, ImageStore
from plimsoll.sandboxes.docker.images.pruning import prune_images
from plimsoll.sandboxes.docker.labels import OWNER_LABEL
from plimsoll.sandboxes.protocol import ImageSource

DAY = 86400.0
MB = 1_000_000


@pytest.fixture
async def own(dockerd: Any) -> AsyncIterator[Daemon]:
    """A daemon without images of Plimsoll, used by this test only."""
    async with Daemon(find_endpoint(dockerd.url, None, {})) as daemon:
        yield daemon
        for container in await daemon.containers():
            await daemon.remove(container.id)
        await prune_images(daemon, keep_bytes=0, keep_days=0, now=time.time() + 900 * DAY)
        assert not await daemon.images(OWNER_LABEL)


@pytest.fixture
def build(own: Daemon, tmp_path: Path) -> Callable[..., Any]:
    async def build(*lines: str) -> DockerImage:
        folder = tmp_path / short_id()
        folder.mkdir()
        file = folder / "Dockerfile"
        file.write_text("\n".join(("FROM debian:12", *lines)))
        return await ImageStore(own, {"HOME": "/nowhere"}).build(ImageSource(folder, file))

    return build


async def in_days(daemon: Daemon, days: float, **more: Any) -> list[str]:
    limits = {"keep_bytes": 1e12, "keep_days": 14, "now": time.time() + days * DAY, **more}
    return [gone.name for gone in await prune_images(daemon, **limits)]


async def test_images_unused_for_long_are_pruned(own: Daemon, build: Any):
    image = await build("ENV A=1")
    assert await in_days(own, 13) == []
    assert await in_days(own, 15, in_use={image.name}) == []
    assert await in_days(own, 15, in_use={image.key}) == []
    assert await in_days(own, 15) == [image.name]
    assert await own.image(image.key) is None
    assert await own.image("debian:12") is not None
    assert await in_days(own, 15) == []


async def test_an_image_with_a_container_is_kept(own: Daemon, build: Any):
    image = await build("ENV A=2")
    config = {"Image": image.reference, "Cmd": ["true"]}
    container = await own.create_container(config, f"plimsoll-test-{short_id()}")
    assert await in_days(own, 900) == []
    await own.remove(container)
    assert await in_days(own, 900) == [image.name]


async def test_an_image_with_a_users_tag_is_kept(own: Daemon, build: Any):
    image = await build("ENV A=3")
    await own.tag(image.key, "mine:1")
    assert await in_days(own, 900) == []
    await own.remove_image("mine:1")
    assert await in_days(own, 900) == [image.name]


async def test_beyond_the_size_limit_the_least_recently_used_are_pruned(own: Daemon, build: Any):
    write = "RUN head -c 4000000 /dev/urandom > /{}"
    first = await build(write.format("a"))
    # Both have the layers of the one before, which are counted once.
    second = await build(write.format("a"), write.format("b"))
    third = await build(write.format("a"), "RUN echo x > /c")
    await own.tag(first.key, first.name)
    assert await in_days(own, 1, keep_bytes=9 * MB) == []
    assert await in_days(own, 0, keep_bytes=0) == []  # used just now
    assert await in_days(own, 1, keep_bytes=7 * MB) == [second.name]
    assert await in_days(own, 1, keep_bytes=7 * MB) == []
    assert set(await in_days(own, 1, keep_bytes=0)) == {first.name, third.name}


async def test_images_of_failed_builds_are_pruned(own: Daemon, build: Any):
    with pytest.raises(Exception, match="exit 3"):
        await build("RUN head -c 1000000 /dev/urandom > /left", "RUN exit 3")
    left = [
        row
        for row in await own.images(BUILD_LABEL, all=True)
        if OWNER_LABEL not in (row.labels or {})
    ]
    assert left
    assert await in_days(own, 0.1) == []  # a build may still be using it
    assert await in_days(own, 0.5) == [""]
    assert not await own.images(BUILD_LABEL, all=True)


async def test_an_imported_image_is_recognized_by_its_label(own: Daemon):
    tar = io.BytesIO()
    tarfile.open(fileobj=tar, mode="w").close()
    for name, labels in (("plimsoll/assets:x", {OWNER_LABEL: "h 1 x"}), ("foreign:x", {"a": "b"})):
        await own.import_image(tar.getvalue(), name, labels)
    assert await in_days(own, 900) == ["plimsoll/assets:x"]
    assert await own.remove_image("foreign:x") is True
