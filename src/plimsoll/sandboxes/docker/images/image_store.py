"""The images of one daemon: built, pulled or found by name, and removed when unused."""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from plimsoll.core.errors import BuildError, SandboxUnavailable
from plimsoll.sandboxes.docker.daemon import responses
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.cli_config import DockerCliConfig
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.daemon.responses import ImageSummary
from plimsoll.sandboxes.docker.images.build_input import BUILD_LABEL
from plimsoll.sandboxes.docker.images.builder import Builder, BuildRequest
from plimsoll.sandboxes.docker.images.puller import Puller
from plimsoll.sandboxes.docker.labels import OWNER_LABEL
from plimsoll.sandboxes.docker.single_flight import HostLocks
from plimsoll.sandboxes.protocol import ImageSource, OnOutput, Supplies

__all__ = ["DockerImage", "ImageStore", "prune_images"]

_MARK_INTERVAL = 1200.0
"""Seconds between two marks of an image as used."""


@dataclass(frozen=True, slots=True)
class DockerImage:
    """An image, with the environment, folder and user of its commands."""

    key: str
    """The daemon's id of the image, a digest of its content."""
    name: str
    env: Mapping[str, str]
    workdir: str
    user: str

    @property
    def reference(self) -> str:
        """The id to create containers from; a tag could be moved to another image."""
        return self.key


class ImageStore:
    """Builds and finds images."""

    def __init__(
        self, daemon: Daemon, env: Mapping[str, str], locks: HostLocks | None = None
    ) -> None:
        self._daemon = daemon
        self._puller = Puller(daemon, DockerCliConfig(env))
        self._builder = Builder(daemon, self._puller, locks or HostLocks(str(daemon.endpoint)))
        self._last_marked: dict[str, float] = {}
        self._in_use: set[str] = set()

    @property
    def in_use(self) -> frozenset[str]:
        """Ids and names of images that this process uses or builds; they are not pruned."""
        return frozenset(self._in_use) | self._builder.building

    async def build(self, source: ImageSource, on_output: OnOutput | None = None) -> DockerImage:
        """Build or find the image of a source. Raises `BuildError` with the reason."""
        if source.dockerfile is not None:
            context = source.context or source.dockerfile.parent
            return await self.build_request(
                BuildRequest(context, source.dockerfile, source.build_timeout, source.supplies),
                on_output,
            )
        if source.reference is None:
            raise BuildError("the task has neither a Dockerfile nor an image name (docker_image)")
        return await self.find(source.reference, source.build_timeout, on_output)

    async def build_request(
        self, request: BuildRequest, on_output: OnOutput | None = None
    ) -> DockerImage:
        """Build an image, or find the one that an equal request built."""
        tag = await self._builder.build(request, on_output)
        found = await self._daemon.image(tag)
        if found is None:
            raise BuildError(
                f"{request.dockerfile}: {tag} was built but has been removed from the daemon"
            )
        await self._mark(found.id, tag)
        return self._image(found, tag, request.supplies)

    async def find(
        self, name: str, timeout: float = 600.0, on_output: OnOutput | None = None
    ) -> DockerImage:
        """An image by its name; pulled if the daemon does not have it."""
        try:
            async with asyncio.timeout(timeout):
                found = await self._puller.ensure(name, on_output=on_output)
        except TimeoutError:
            raise BuildError(
                f"image {name}: pulling it took longer than {timeout:g} s (build_timeout_sec)"
            ) from None
        return self._image(found, name)

    def _image(
        self, found: responses.ImageInspect, name: str, supplies: Supplies | None = None
    ) -> DockerImage:
        self._in_use |= {found.id, name}
        config = found.config or responses.ImageConfig()
        return DockerImage(
            key=found.id,
            name=name,
            env=_without(found.env, supplies) if supplies else found.env,
            workdir=config.working_dir or "/",
            user=config.user or "root",
        )

    async def _mark(self, image: str, tag: str) -> None:
        """Record the use of an image on the daemon: a new tag updates its tag time."""
        now = time.monotonic()
        if now - self._last_marked.get(image, -_MARK_INTERVAL) >= _MARK_INTERVAL:
            self._last_marked[image] = now
            await self._daemon.tag(image, tag)


def _without(env: Mapping[str, str], supplies: Supplies) -> dict[str, str]:
    """The image's variables without those of the build's supplies."""
    own = {key: value for key, value in env.items() if supplies.env.get(key) != value}
    if supplies.path and "PATH" in own:
        parts = f"{own['PATH']}:".replace(f"{supplies.path}:", "")
        own["PATH"] = parts.rstrip(":")
    return own


# Prunes Plimsoll's images that are no longer needed, by last use and by size.
#
# The last use of an image is stored on the daemon, as its tag time, which each use sets. Sizes
# count shared layers once: each image of a parent chain counts what it adds to its parent.
# Images with a container, images used a short while ago, and parents of other images are
# needed.


_IMAGE_PREFIX = "plimsoll/"
_RECENT_USE = 3600.0
"""Seconds after a use in which an image is never pruned."""
_UNFINISHED_BUILD = 6 * 3600.0
"""Seconds after which an untagged image does not belong to a running build."""


@dataclass(frozen=True, slots=True)
class PrunedImage:
    """A removed image."""

    id: str
    name: str
    """"" for an image that a failed build left."""
    bytes: int


async def prune_images(
    daemon: Daemon,
    *,
    keep_bytes: float,
    keep_days: float,
    now: float,
    in_use: Collection[str] = (),
) -> list[PrunedImage]:
    """Remove images of Plimsoll not used for `keep_days`, then the least recently used ones
    beyond `keep_bytes` in total. `in_use` are ids and names of images to keep.
    """
    tree = _ImageTree(await daemon.images(all=True))
    used = {row.image_id for row in await daemon.containers()}
    times = {leaf.id: await _last_use(daemon, leaf) for leaf in tree.leaves()}
    removed: list[PrunedImage] = []
    needed = {*used, *in_use}
    for row in sorted(tree.leaves(), key=lambda row: times[row.id]):
        age = now - times[row.id]
        names = _names(row)
        if row.id in needed or needed.intersection(names) or _is_young(age, names):
            continue
        if not all(name.startswith(_IMAGE_PREFIX) for name in names):
            continue  # someone gave it another name
        if names and age < keep_days * 86400 and tree.size() <= keep_bytes:
            continue
        if await _remove(daemon, row):
            removed.append(PrunedImage(row.id, (names or [""])[0], tree.remove(row)))
    return removed


def _is_young(age: float, names: list[str]) -> bool:
    return age < (_RECENT_USE if names else _UNFINISHED_BUILD)


class _ImageTree:
    """The daemon's images, linked by parent."""

    def __init__(self, rows: Iterable[ImageSummary]) -> None:
        self._rows: dict[str, ImageSummary] = {row.id: row for row in rows}
        self._children: dict[str, set[str]] = {}
        for row in self._rows.values():
            self._children.setdefault(row.parent_id, set()).add(row.id)

    def leaves(self) -> list[ImageSummary]:
        """Images of Plimsoll without children."""
        return [
            row for row in self._rows.values() if _is_plimsolls(row) and not self._has_child(row)
        ]

    def size(self) -> int:
        """The total size of Plimsoll's images in bytes."""
        return sum(self._own_size(row) for row in self._rows.values() if _is_plimsolls(row))

    def remove(self, row: ImageSummary) -> int:
        """Remove an image and its untagged parents without other children; the bytes freed."""
        freed = 0
        at: ImageSummary | None = row
        while at is not None and _is_plimsolls(at) and not self._has_child(at):
            if at is not row and _names(at):
                break
            freed += self._own_size(at)
            del self._rows[at.id]
            self._children[at.parent_id].discard(at.id)
            at = self._rows.get(at.parent_id)
        return freed

    def _has_child(self, row: ImageSummary) -> bool:
        return bool(self._children.get(row.id))

    def _own_size(self, row: ImageSummary) -> int:
        parent = self._rows.get(row.parent_id)
        return max(0, row.size - parent.size) if parent else row.size


def _is_plimsolls(row: ImageSummary) -> bool:
    labels: Mapping[str, str] = row.labels or {}
    return OWNER_LABEL in labels or BUILD_LABEL in labels


def _names(row: ImageSummary) -> list[str]:
    return [name for name in row.repo_tags or [] if name != "<none>:<none>"]


async def _last_use(daemon: Daemon, row: ImageSummary) -> float:
    """The tag time of an image, which is its last use; else its creation time."""
    found = await daemon.image(row.id) if _names(row) else None
    if found is None:
        return row.created
    try:
        tagged = datetime.fromisoformat(found.metadata.last_tag_time)
    except ValueError:
        return row.created
    # The daemon reports the year 1 for an unknown tag time.
    return max(row.created, tagged.timestamp()) if tagged.year > 1 else row.created


async def _remove(daemon: Daemon, row: ImageSummary) -> bool:
    """Remove an image. Returns False if it is in use."""
    try:
        for name in _names(row) or [row.id]:
            await daemon.remove_image(name)
    except SandboxUnavailable:
        raise
    except DaemonError as error:
        if error.status == 409:
            return False
        raise
    return True
