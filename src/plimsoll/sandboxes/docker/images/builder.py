"""Builds a Dockerfile on an engine, once: a build's tag is a hash of all that goes into it.

The engine's classic builder is used, which needs nothing but the engine, and `docker buildx` for
what it does not do. The context is sent while it is read. When the connection closes, the engine
stops the build and removes its containers: a build that is cancelled or takes too long is gone.
"""

import asyncio
import functools
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from plimsoll.core.errors import BuildError, TaskError, TransferError
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.files.tar_stream import (
    Tar,
    add_tree,
    tar_stream,
    walk_tree,
)
from plimsoll.sandboxes.docker.images.build_input import (
    BaseImage,
    BuildContext,
    BuildDockerfile,
    RenderedDockerfile,
)
from plimsoll.sandboxes.docker.images.build_methods import BuildxBuild, ClassicBuild, has_buildx
from plimsoll.sandboxes.docker.images.puller import Puller
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.docker.single_flight import HostLocks, SingleFlight
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import OnOutput, Supplies

__all__ = ["BuildRequest", "Builder", "cache_labels"]

_FORMAT = "build 1"
"""Part of every tag; changes when images are built differently."""
_TASK = "plimsoll/task"
_ASSETS = "plimsoll/assets"
_IMAGE_LIFETIME = 90 * 86400.0
"""Seconds after which an image is nobody's, even where nobody collects."""


def cache_labels(ticket: str) -> dict[str, str]:
    """Labels of an image that serves many runs."""
    labels = Labels("shared", ticket, this_process(), time.time() + _IMAGE_LIFETIME)
    return to_docker(labels, shared=True)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What is to be built."""

    context: Path
    dockerfile: Path
    timeout: float = 600.0
    supplies: Supplies = field(default_factory=Supplies)
    args: Mapping[str, str] = field(default_factory=dict[str, str])
    target: str = ""
    """The stage to build; "" for the last."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """An order that has been read: all that the engine is told."""

    order: BuildRequest
    recipe: BuildDockerfile
    context: BuildContext
    written: RenderedDockerfile
    assets: str
    tag: str
    work: ClassicBuild | BuildxBuild


class Builder:
    """Builds for one engine."""

    def __init__(self, engine: Daemon, puller: Puller, turns: HostLocks) -> None:
        self._engine = engine
        self._puller = puller
        self._turns = turns
        self._builds = SingleFlight[None]()
        self._assets = SingleFlight[None]()
        self._busy: set[str] = set()
        self._works = WeakValueDictionary[str, ClassicBuild | BuildxBuild]()
        """Builds by their tag, for those who wait for one that another began."""

    @property
    def under_way(self) -> frozenset[str]:
        """Tags that are being built, and of what is used for that."""
        return frozenset(self._busy)

    async def build(self, order: BuildRequest, on_output: OnOutput | None = None) -> str:
        """Build, or find what an equal order was built into; its tag.

        Raises `BuildError` with the line at fault. Whoever orders what is being built already
        waits for it, gets its output from the beginning, and may leave without ending it.
        """
        plan: _Plan | None = None
        limit = asyncio.timeout(order.timeout)
        try:
            async with limit:
                plan = await self._plan(order, on_output)
                if await self._engine.image(plan.tag) is None:
                    build = functools.partial(self._build_once, plan)
                    await self._builds.join(plan.tag, build, on_output)
                return plan.tag
        except TimeoutError:
            if not limit.expired():
                raise
            work = self._works.get(plan.tag) if plan else None
            at = work.at if work else None
            where = f"{order.dockerfile}:{at.line}" if at else order.dockerfile
            raise BuildError(
                f"{where}: the build took longer than {order.timeout:g} s (build_timeout_sec)"
            ) from None

    async def _plan(self, order: BuildRequest, on_output: OnOutput | None) -> _Plan:
        version = self._engine.version
        platform = f"{version.os}/{version.arch}"
        recipe, context = await asyncio.to_thread(_read, order, platform)
        bases = [await self._base(base, recipe, on_output) for base in recipe.images]
        assets = _assets_tag(order.supplies)
        written = recipe.written(order.supplies, assets)
        digest = await asyncio.to_thread(_digest, context)
        seen = [_FORMAT, platform, written.text, digest, sorted(recipe.args.items())]
        sums = hashlib.sha256(msgspec.json.encode([*seen, bases]))
        tag = f"{_TASK}:{sums.hexdigest()[:32]}"
        kind = BuildxBuild if recipe.buildkit_need() else ClassicBuild
        return _Plan(order, recipe, context, written, assets, tag, kind(recipe, written))

    async def _base(
        self, base: BaseImage, recipe: BuildDockerfile, on_output: OnOutput | None
    ) -> str:
        """The id of an image that the build starts or copies from."""
        try:
            return (await self._puller.ensure(base.name, base.platform, on_output)).id
        except BuildError as error:
            at = base.at
            raise BuildError(f"{recipe.where(at)}: {at.keyword} {at.args}: {error}") from None

    async def _build_once(self, plan: _Plan, say: OnOutput) -> None:
        """Build, unless another process of this host has done so or failed to meanwhile."""
        async with self._turns.take(plan.tag, say) as turn:
            if await self._engine.image(plan.tag) is None:
                turn.check()
                with turn.telling():
                    await self._build(plan, say)

    async def _build(self, plan: _Plan, say: OnOutput) -> None:
        order, labels = plan.order, cache_labels("image")
        need = plan.recipe.buildkit_need()
        if need and not await asyncio.to_thread(has_buildx):
            raise BuildError(
                f"{need} needs BuildKit, which the engine's own builder is not: install the "
                "docker command with its plugin buildx, or write the Dockerfile without it"
            )
        self._works[plan.tag] = plan.work
        tags = {plan.tag, plan.assets}
        self._busy |= tags
        try:
            if plan.assets:
                await self._ensure_assets(plan.assets, order.supplies)
            if isinstance(plan.work, BuildxBuild):
                place = (order.context, order.dockerfile)
                await plan.work.run(self._engine.endpoint, *place, plan.tag, labels, say)
            else:
                await plan.work.run(self._engine, plan.context, plan.tag, labels, say)
        except TransferError as error:
            raise BuildError(str(error)) from None
        finally:
            self._busy -= tags

    async def _ensure_assets(self, tag: str, supplies: Supplies) -> None:
        """An image that holds the supplies' files, each mount in a folder of its own."""

        async def make(_: OnOutput) -> None:
            async with self._turns.take(tag):
                if await self._engine.image(tag) is None:
                    async with tar_stream(lambda tar: _write_mounts(tar, supplies)) as tar:
                        await self._engine.import_image(tar, tag, cache_labels("assets"))

        if await self._engine.image(tag) is None:
            await self._assets.join(tag, make)
        else:
            await self._engine.tag(tag, tag)  # used now: see `collection`


def _read(order: BuildRequest, platform: str) -> tuple[BuildDockerfile, BuildContext]:
    file = str(order.dockerfile)
    try:
        text = order.dockerfile.read_text("utf-8")
        context = BuildContext(order.context, order.dockerfile)
        return BuildDockerfile(text, file, platform, order.args, order.target), context
    except TaskError as error:
        raise BuildError(str(error)) from None
    except UnicodeDecodeError:
        raise BuildError(f"{file}: not UTF-8 text") from None
    except OSError as error:
        raise BuildError(f"{error.filename or file}: {error.strerror}") from None


def _digest(context: BuildContext) -> str:
    try:
        return context.digest()
    except OSError as error:
        raise BuildError(f"{error.filename}: {error.strerror}") from None


def _assets_tag(supplies: Supplies) -> str:
    if not supplies.mounts:
        return ""
    parts = [supplies.key, *(mount.target for mount in supplies.mounts)]
    return f"{_ASSETS}:{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]}"


def _write_mounts(tar: Tar, supplies: Supplies) -> None:
    for number, mount in enumerate(supplies.mounts):
        if mount.source.is_dir():
            add_tree(tar, [(str(number), mount.source)])
            add_tree(tar, ((f"{number}/{name}", path) for name, path in walk_tree(mount.source)))
        else:
            add_tree(tar, [(f"{number}/{mount.source.name}", mount.source)])
