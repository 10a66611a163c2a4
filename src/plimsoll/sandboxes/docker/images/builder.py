"""Builds Dockerfiles on a daemon. The tag of an image is a hash of all build inputs.

The daemon's classic builder is used, and `docker buildx` for Dockerfiles that need BuildKit. The
context is streamed. When the connection closes, the daemon stops the build and removes its
containers, so a cancelled or timed out build leaves nothing.
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
from plimsoll.sandboxes.docker.host_locks import HostLocks
from plimsoll.sandboxes.docker.images.build_input import (
    BaseImage,
    BuildContext,
    BuildDockerfile,
)
from plimsoll.sandboxes.docker.images.build_methods import BuildxBuild, ClassicBuild, has_buildx
from plimsoll.sandboxes.docker.images.puller import Puller
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import OnOutput, Supplies
from plimsoll.sandboxes.single_flight import SingleFlight

__all__ = ["BuildRequest", "Builder", "cache_labels"]

_FORMAT = "build 1"
"""Part of every tag's hash; changes when the build procedure changes."""
_TASK = "plimsoll/task"
_ASSETS = "plimsoll/assets"
_IMAGE_LIFETIME = 90 * 86400.0
"""Seconds after which an image expires, even if it is never pruned."""


def cache_labels(ticket: str) -> dict[str, str]:
    """Labels of an image that is shared by runs."""
    labels = Labels("shared", ticket, this_process(), time.time() + _IMAGE_LIFETIME)
    return to_docker(labels, shared=True)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The inputs of a build."""

    context: Path
    dockerfile: Path
    timeout: float = 600.0
    supplies: Supplies = field(default_factory=Supplies)
    args: Mapping[str, str] = field(default_factory=dict[str, str])
    target: str = ""
    """The stage to build; "" for the last."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A parsed request, with the tag and the build method."""

    request: BuildRequest
    parsed: BuildDockerfile
    context: BuildContext
    assets: str
    tag: str
    method: ClassicBuild | BuildxBuild


class Builder:
    """Builds images on one daemon."""

    def __init__(self, daemon: Daemon, puller: Puller, locks: HostLocks) -> None:
        self._daemon = daemon
        self._puller = puller
        self._locks = locks
        self._builds = SingleFlight[None]()
        self._assets = SingleFlight[None]()
        self._building: set[str] = set()
        self._running_builds = WeakValueDictionary[str, ClassicBuild | BuildxBuild]()
        """Builds in progress by tag, for callers that joined one."""

    @property
    def building(self) -> frozenset[str]:
        """The tags being built, and those of their assets."""
        return frozenset(self._building)

    async def build(self, request: BuildRequest, on_output: OnOutput | None = None) -> str:
        """Build an image, or find the one that an equal request built. Returns its tag.

        Raises `BuildError` with the failing line. A request that is being built already joins that
        build, gets its output from the start, and may leave without ending it.
        """
        plan: _Plan | None = None
        limit = asyncio.timeout(request.timeout)
        try:
            async with limit:
                plan = await self._plan(request, on_output)
                if await self._daemon.image(plan.tag) is None:
                    build = functools.partial(self._build_once, plan)
                    await self._builds.run(plan.tag, build, on_output)
                return plan.tag
        except TimeoutError:
            if not limit.expired():
                raise
            method = self._running_builds.get(plan.tag) if plan else None
            at = method.at if method else None
            where = f"{request.dockerfile}:{at.line}" if at else request.dockerfile
            raise BuildError(
                f"{where}: the build took longer than {request.timeout:g} s (build_timeout_sec)"
            ) from None

    async def _plan(self, request: BuildRequest, on_output: OnOutput | None) -> _Plan:
        version = self._daemon.version
        platform = f"{version.os}/{version.arch}"
        parsed, context = await asyncio.to_thread(_read, request, platform)
        bases = [await self._base(base, parsed, on_output) for base in parsed.images]
        assets = _assets_tag(request.supplies)
        rendered = parsed.render(request.supplies, assets)
        digest = await asyncio.to_thread(_digest, context)
        inputs = [_FORMAT, platform, rendered.text, digest, sorted(parsed.args.items())]
        sums = hashlib.sha256(msgspec.json.encode([*inputs, bases]))
        tag = f"{_TASK}:{sums.hexdigest()[:32]}"
        kind = BuildxBuild if parsed.buildkit_feature() else ClassicBuild
        return _Plan(request, parsed, context, assets, tag, kind(parsed, rendered))

    async def _base(
        self, base: BaseImage, parsed: BuildDockerfile, on_output: OnOutput | None
    ) -> str:
        """The id of an image that the build starts from or copies from."""
        try:
            return (await self._puller.ensure(base.name, base.platform, on_output)).id
        except BuildError as error:
            at = base.at
            raise BuildError(f"{parsed.where(at)}: {at.keyword} {at.args}: {error}") from None

    async def _build_once(self, plan: _Plan, emit: OnOutput) -> None:
        """Build, unless another process of this host built it or failed meanwhile."""
        async with self._locks.acquire(plan.tag, emit) as lock:
            if await self._daemon.image(plan.tag) is None:
                lock.check()
                with lock.recording_failure():
                    await self._build(plan, emit)

    async def _build(self, plan: _Plan, emit: OnOutput) -> None:
        request, labels = plan.request, cache_labels("image")
        feature = plan.parsed.buildkit_feature()
        if feature and not await asyncio.to_thread(has_buildx):
            raise BuildError(
                f"{feature} needs BuildKit: install the docker command with its plugin "
                "buildx, or write the Dockerfile without it"
            )
        self._running_builds[plan.tag] = plan.method
        tags = {plan.tag, plan.assets}
        self._building |= tags
        try:
            if plan.assets:
                await self._ensure_assets(plan.assets, request.supplies)
            if isinstance(plan.method, BuildxBuild):
                paths = (request.context, request.dockerfile)
                await plan.method.run(self._daemon.endpoint, *paths, plan.tag, labels, emit)
            else:
                await plan.method.run(self._daemon, plan.context, plan.tag, labels, emit)
        except TransferError as error:
            raise BuildError(str(error)) from None
        finally:
            self._building -= tags

    async def _ensure_assets(self, tag: str, supplies: Supplies) -> None:
        """Create the image with the files of the supplies, one folder for each mount."""

        async def make(_: OnOutput) -> None:
            async with self._locks.acquire(tag):
                if await self._daemon.image(tag) is None:
                    async with tar_stream(lambda tar: _write_mounts(tar, supplies)) as tar:
                        await self._daemon.import_image(tar, tag, cache_labels("assets"))

        if await self._daemon.image(tag) is None:
            await self._assets.run(tag, make)
        else:
            await self._daemon.tag(tag, tag)  # marks it as used: see `prune_images`


def _read(request: BuildRequest, platform: str) -> tuple[BuildDockerfile, BuildContext]:
    file = str(request.dockerfile)
    try:
        text = request.dockerfile.read_text("utf-8")
        context = BuildContext(request.context, request.dockerfile)
        return BuildDockerfile(text, file, platform, request.args, request.target), context
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
