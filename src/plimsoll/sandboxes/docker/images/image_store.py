"""The images of one daemon: built, pulled or found by name."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.docker.daemon import responses
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.cli_config import DockerCliConfig
from plimsoll.sandboxes.docker.host_locks import HostLocks
from plimsoll.sandboxes.docker.images.builder import Builder, BuildRequest
from plimsoll.sandboxes.docker.images.puller import Puller
from plimsoll.sandboxes.protocol import ImageSource, OnOutput, Supplies

__all__ = ["DockerImage", "ImageStore"]

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
