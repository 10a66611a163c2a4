"""Images of one engine: built from a task's Dockerfile, or used as they are."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.docker.daemon import responses
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.cli_config import DockerCliConfig
from plimsoll.sandboxes.docker.images.builder import Builder, BuildRequest
from plimsoll.sandboxes.docker.images.puller import Puller
from plimsoll.sandboxes.docker.single_flight import HostLocks
from plimsoll.sandboxes.protocol import ImageSource, OnOutput, Supplies

__all__ = ["DockerImage", "ImageStore"]

_MARK_INTERVAL = 1200.0
"""Seconds within which an image need not be marked as used again."""


@dataclass(frozen=True, slots=True)
class DockerImage:
    """An image that containers are created from, and what its commands start with."""

    key: str
    """The engine's id, which is a digest of the content."""
    name: str
    env: Mapping[str, str]
    workdir: str
    user: str

    @property
    def reference(self) -> str:
        """What a container is created from: a name could come to mean another image."""
        return self.key


class ImageStore:
    """Builds and finds images."""

    def __init__(
        self, engine: Daemon, env: Mapping[str, str], turns: HostLocks | None = None
    ) -> None:
        self._engine = engine
        self._puller = Puller(engine, DockerCliConfig(env))
        self._builder = Builder(engine, self._puller, turns or HostLocks(str(engine.endpoint)))
        self._used: dict[str, float] = {}
        self._held: set[str] = set()

    @property
    def held(self) -> frozenset[str]:
        """Ids and names of all that this process has used or builds: not to be collected."""
        return frozenset(self._held) | self._builder.under_way

    async def build(self, source: ImageSource, on_output: OnOutput | None = None) -> DockerImage:
        """The image that a source stands for. Raises `BuildError` with what is at fault."""
        if source.dockerfile is not None:
            context = source.context or source.dockerfile.parent
            return await self.build_order(
                BuildRequest(context, source.dockerfile, source.build_timeout, source.supplies),
                on_output,
            )
        if source.reference is None:
            raise BuildError(
                "there is neither a Dockerfile nor the name of an image (docker_image)"
            )
        return await self.find(source.reference, source.build_timeout, on_output)

    async def build_order(
        self, order: BuildRequest, on_output: OnOutput | None = None
    ) -> DockerImage:
        """Build, or find what an equal order was built into."""
        tag = await self._builder.build(order, on_output)
        found = await self._engine.image(tag)
        if found is None:
            raise BuildError(f"{order.dockerfile}: {tag} was built, and is gone from the engine")
        await self._mark(found.id, tag)
        return self._image(found, tag, order.supplies)

    async def find(
        self, name: str, timeout: float = 600.0, on_output: OnOutput | None = None
    ) -> DockerImage:
        """An image by its name, pulled where the engine does not have it."""
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
        self._held |= {found.id, name}
        config = found.config or responses.ImageConfig()
        return DockerImage(
            key=found.id,
            name=name,
            env=_without(found.env, supplies) if supplies else found.env,
            workdir=config.working_dir or "/",
            user=config.user or "root",
        )

    async def _mark(self, image: str, tag: str) -> None:
        """Say on the engine that an image is used: tagging it again sets the time of its tag."""
        now = time.monotonic()
        if now - self._used.get(image, -_MARK_INTERVAL) >= _MARK_INTERVAL:
            self._used[image] = now
            await self._engine.tag(image, tag)


def _without(env: Mapping[str, str], supplies: Supplies) -> dict[str, str]:
    """An image's variables without those that its build was supplied with."""
    own = {key: value for key, value in env.items() if supplies.env.get(key) != value}
    if supplies.path and "PATH" in own:
        parts = f"{own['PATH']}:".replace(f"{supplies.path}:", "")
        own["PATH"] = parts.rstrip(":")
    return own
