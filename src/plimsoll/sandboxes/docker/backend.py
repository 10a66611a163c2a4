"""The Docker backend: sandboxes as containers of an engine, on this host or another."""

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import BuildError, SandboxError, SandboxUnavailable, SandboxUnsupported
from plimsoll.core.ids import Labels, short_id
from plimsoll.core.permissions import NetworkMode
from plimsoll.sandboxes.container.init_binary import init_binary
from plimsoll.sandboxes.container.sandbox import ContainerSandbox
from plimsoll.sandboxes.docker.compose.launcher import ComposeImage, ComposeLauncher
from plimsoll.sandboxes.docker.compose.layout import merge_limits
from plimsoll.sandboxes.docker.compose.project import ComposeProject, ComposeSandbox, MainContainer
from plimsoll.sandboxes.docker.container_spec import NO_NETWORK_MODE, ContainerSpec, limits_config
from plimsoll.sandboxes.docker.daemon.api import Daemon, watch_daemon
from plimsoll.sandboxes.docker.daemon.errors import (
    DaemonUnreachable,
    ResourceRemoved,
    full_disk_error,
)
from plimsoll.sandboxes.docker.docker_container import DockerContainer
from plimsoll.sandboxes.docker.files.host_files import HostFiles
from plimsoll.sandboxes.docker.images.image_store import DockerImage, ImageStore
from plimsoll.sandboxes.docker.images.pruning import prune_images
from plimsoll.sandboxes.docker.inventory import DockerInventory
from plimsoll.sandboxes.docker.network.run_networks import RunNetworks, name_servers
from plimsoll.sandboxes.docker.options import DockerOptions
from plimsoll.sandboxes.docker.single_flight import HostLocks
from plimsoll.sandboxes.host.disk_space import Disk, watch_disk
from plimsoll.sandboxes.host.locks import remove_stale_locks
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.host.temporary import remove_leftovers, temporary_folder
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.protocol import Image, ImageSource, Limits, OnOutput, SandboxSpec
from plimsoll.sandboxes.reaper import Reaper, reap

__all__ = ["DockerBackend", "DockerOptions"]

log = logging.getLogger(__name__)

_OLDEST_API = (1, 40)
_COLLECT_EVERY = 3600.0
_RETRY_EVERY = 10.0
_PING_PAUSE = 0.5

_T = TypeVar("_T")
_LARGEST_RESOLV_CONF = 1 << 20


class DockerBackend:
    """One process's sandboxes on one engine. Use it as an async context manager."""

    name = "docker"

    def __init__(self, options: DockerOptions | None = None) -> None:
        self._options = options or DockerOptions()
        self._warnings: dict[str, None] = {}
        self._keepers: set[DockerContainer] = set()
        """Of every container that there may be, from before it is made until it is removed."""
        self._left: set[DockerContainer] = set()
        """Those among them that could not be removed when they were to."""
        self._stack = AsyncExitStack()
        self._dns = self._options.dns

    @property
    def warnings(self) -> Sequence[str]:
        return tuple(self._warnings)

    @property
    def engine(self) -> Daemon:
        """The engine, while the backend is entered."""
        return self._engine

    def _warn(self, text: str) -> None:
        self._warnings.setdefault(text)

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def _open(self) -> None:
        options = self._options
        engine = Daemon(options.endpoint(os.environ))
        self._engine = await self._stack.enter_async_context(engine)
        info = await engine.info()
        _check_engine(engine, info.os_type)
        _check_runtime(engine, info.runtimes, options.runtime)
        self._disk = Disk(lambda left: str(full_disk_error(str(engine.endpoint), left)))
        inventory = DockerInventory(engine)
        reaping = asyncio.create_task(reap(inventory))
        self._stack.push_async_callback(_ended, reaping)
        await asyncio.to_thread(remove_leftovers)
        await asyncio.to_thread(remove_stale_locks, Home.find(options.home).locks)
        turns = HostLocks(str(engine.endpoint), options.home)
        self._files = HostFiles(engine, init_binary(info.architecture), options.home)
        self._stack.push_async_callback(self._files.close)
        self._networks = RunNetworks(engine, self._files.ensure_image, turns)
        self._stack.push_async_callback(self._networks.close)
        self._images = ImageStore(engine, os.environ, turns)
        self._projects = ComposeLauncher(engine, self._images, os.environ, options.runtime)
        self._stack.push_async_callback(self._projects.close)
        await self._files.open()
        await self._prove_it_works()
        await asyncio.wait([reaping])
        if (error := reaping.exception()) is not None:
            self._warn(f"what dead runs left on the engine could not be removed: {error}")
        await self._stack.enter_async_context(Reaper(inventory))
        await self._stack.enter_async_context(watch_disk(self._look_at_disk))
        for work in (watch_daemon(engine, self._hang_up), self._collect_images(), self._retry()):
            self._stack.push_async_callback(_ended, asyncio.create_task(work))

    async def _look_at_disk(self) -> None:
        """By the eyes of one sandbox: the engine does not say, and may be on another host."""
        sandboxes = [keeper.sandbox for keeper in self._keepers if keeper.sandbox is not None]
        for sandbox in random.sample(sandboxes, len(sandboxes)):
            with suppress(SandboxUnavailable):  # gone: the next one
                sandbox.look_at_disk()
                return

    async def _collect_images(self) -> None:
        """Keep the engine's disk from filling up with images of ours, for ever."""
        while True:
            try:
                await prune_images(
                    self._engine,
                    keep_bytes=self._options.keep_images_gb * 1e9,
                    keep_days=self._options.keep_images_days,
                    now=time.time(),
                    held=self._images.held,
                )
            except SandboxError as error:
                log.warning("images that nobody uses could not be collected: %s", error)
            await asyncio.sleep(_COLLECT_EVERY)

    async def _retry(self) -> None:
        """Remove what could not be removed, as while the engine restarted: a run may be long."""
        while True:
            await asyncio.sleep(_RETRY_EVERY)
            left = list(self._left)
            await asyncio.gather(*map(self._discard, left), return_exceptions=True)

    async def _prove_it_works(self) -> None:
        """Start and close one sandbox, so that an engine that cannot says so before any work."""
        labels = Labels("probe", "probe", this_process(), time.time() + 600)
        image = await self._files.ensure_image()
        sandbox = await self._start(await self._images.find(image), SandboxSpec(labels))
        try:
            if not self._dns:
                self._dns = await _engines_name_servers(sandbox)
        finally:
            await sandbox.close()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await run_to_completion(self._close(exc_type, exc, traceback))

    async def _close(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """What is left is warned of and not raised: no result of a run is lost for it."""
        ended = await asyncio.gather(
            *(self._discard(keeper) for keeper in list(self._keepers)), return_exceptions=True
        )
        failed = [error for error in ended if error is not None]
        try:
            await self._stack.__aexit__(exc_type, exc, traceback)
        except SandboxError as error:
            failed.append(error)
        for error in failed:
            if not isinstance(error, SandboxError):
                raise error
        if failed:
            runs = sorted({keeper.run for keeper in self._left})
            remedy = f"plimsoll clean {runs[0]}" if len(runs) == 1 else "plimsoll clean --expired"
            more = f", and {len(failed) - 1:,} more" if len(failed) > 1 else ""
            self._warn(f"{failed[0]}{more}; `{remedy}` removes what is left, as does the next run")

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        return await self._patiently(lambda: self._build(source, on_output))

    async def _build(self, source: ImageSource, on_output: OnOutput | None) -> Image:
        if source.compose is None:
            return await self._images.build(source, on_output)
        image = await self._projects.build(source, on_output)
        for warning in image.warnings:
            self._warn(warning)
        return image

    async def create(self, image: Image, spec: SandboxSpec) -> ContainerSandbox:
        """Start a sandbox. What it asks for and cannot have is refused here."""
        if spec.system_calls:
            self._warn(
                "metadata.system_calls of a task is not applied by the Docker backend: the "
                "engine's seccomp profile decides which system calls a container may use"
            )
        if isinstance(image, ComposeImage):
            return await self._patiently(lambda: self._start_project(image, spec))
        if not isinstance(image, DockerImage):
            raise SandboxUnsupported(f"image {image.key} was not built by the Docker backend")
        return await self._patiently(lambda: self._start(image, spec), SandboxUnavailable)

    async def _patiently(
        self, work: Callable[[], Awaitable[_T]], again: type[SandboxUnavailable] = ResourceRemoved
    ) -> _T:
        """Do work that leaves nothing behind when it fails, through restarts of the daemon.

        A daemon on its way down refuses connections, drops the ones it has, and answers what
        still reaches it with errors of all kinds. So after any error the work is done again if
        the daemon dropped a connection or accepts no new one, for up to `wait_seconds` after the
        first error. A daemon that is there gets one more try after an error of kind `again`: it
        may have been back by then, or somebody removed a network or volume that the work uses.
        """
        deadline: float | None = None
        may_repeat = True
        while True:
            try:
                return await work()
            except (SandboxUnavailable, BuildError) as error:
                deadline = deadline or time.monotonic() + self._options.wait_seconds
                if isinstance(error, ResourceRemoved):
                    self._forget(error)
                was_away = isinstance(error, DaemonUnreachable) or not await self._answers()
                if was_away:
                    if not await self._comes_back(deadline):
                        raise
                    await self._projects.sweep()
                elif may_repeat and isinstance(error, again):
                    may_repeat = False
                else:
                    raise

    def _forget(self, lost: ResourceRemoved) -> None:
        log.warning("%s; it is made anew", lost)
        for name in lost.names:
            self._networks.forget(name)
            self._files.forget(name)

    async def _answers(self) -> bool:
        """Whether the daemon accepts a new connection.

        One on its way down still answers on the connections that there are.
        """
        try:
            async with Daemon(self._engine.endpoint):
                return True
        except SandboxError:
            return False

    async def _comes_back(self, deadline: float) -> bool:
        """Wait until the daemon answers; False past the deadline."""
        while time.monotonic() < deadline:
            if await self._answers():
                return True
            await asyncio.sleep(_PING_PAUSE)
        return False

    async def _start_project(self, image: ComposeImage, spec: SandboxSpec) -> ContainerSandbox:
        """Start the services of a compose file, and then its main as the sandbox."""
        network = await self._network(spec)
        public = None if network == NO_NETWORK_MODE else network
        project = await self._projects.start(image, spec, public=public)
        main = project.main
        own = replace(
            spec,
            env={**main.env, **spec.env},
            workdir=spec.workdir or main.workdir,
            limits=merge_limits(spec.limits, main.limits),
        )
        try:
            base = replace(image.main, user=main.user or image.main.user)
            return await self._start(base, own, project)
        except BaseException:
            await run_to_completion(self._projects.discard(project))
            raise

    async def _start(
        self, image: DockerImage, spec: SandboxSpec, project: ComposeProject | None = None
    ) -> ContainerSandbox:
        carried = await self._files.carry(image.reference, spec)
        plan = ContainerSpec(
            name=f"plimsoll-{short_id()}",
            image=image.reference,
            labels=spec.labels,
            limits=await self._limits(spec.limits),
            memory_mb=spec.limits.memory_mb,
            mounts=carried.mounts,
            workdir=spec.workdir or image.workdir,
            network=await self._network(spec),
            dns=self._dns,
            runtime=self._options.runtime,
        )
        keeper = (
            DockerContainer(self._engine, self._networks, plan)
            if project is None
            else MainContainer(self._engine, self._networks, plan, project)
        )
        self._keepers.add(keeper)
        try:
            kind = ContainerSandbox if project is None else ComposeSandbox
            sandbox = await kind.start(
                await keeper.start(carried),
                spec,
                keeper=keeper,
                env=spec.supplies.env_over({**image.env, **spec.env}),
                workdir=plan.workdir,
                user=image.user or "root",
                on_close=self._closed,
                disk=self._disk,
                quota_mb=spec.limits.storage_mb if "StorageOpt" in plan.limits else None,
            )
            keeper.sandbox = sandbox
            if spec.network.mode is NetworkMode.ALLOWLIST:
                await sandbox.set_network(spec.network)
        except BaseException:
            await run_to_completion(self._discard(keeper))
            raise
        return sandbox

    async def _discard(self, keeper: DockerContainer) -> None:
        """Remove what there is of a container, with its sandbox if it has one."""
        if keeper.sandbox is not None:
            with suppress(SandboxError):  # it may have failed earlier, and now succeed
                await keeper.sandbox.close()
        self._left.add(keeper)
        await keeper.remove()
        self._keepers.discard(keeper)
        self._left.discard(keeper)

    def _closed(self, sandbox: ContainerSandbox) -> None:
        self._keepers = {keeper for keeper in self._keepers if not keeper.removed}
        self._left |= {keeper for keeper in self._keepers if keeper.sandbox is sandbox}

    async def _hang_up(self, reason: str) -> None:
        for keeper in list(self._keepers):
            await keeper.hang_up(reason)

    async def _network(self, spec: SandboxSpec) -> str:
        if spec.network.mode is NetworkMode.PUBLIC:
            return await self._networks.of_run(spec.labels)
        return NO_NETWORK_MODE

    async def _limits(self, limits: Limits) -> dict[str, object]:
        info = await self._engine.info()
        if limits.cpus is not None and limits.cpus > info.cpus:
            self._warn(
                f"a task wants {limits.cpus:g} CPUs, and the Docker engine has {info.cpus}: "
                "it gets them all"
            )
        if limits.memory_mb is not None and not info.memory_limit:
            self._warn("memory_mb is not enforced: the Docker engine's kernel cannot")
        elif not info.swap_limit:
            self._warn("sandboxes may swap: the Docker engine's kernel cannot limit it")
        if not info.pids_limit:
            self._warn("the number of processes is not limited: the Docker engine cannot")
        storage = limits.storage_mb is not None and await self._files.limit_storage()
        if limits.storage_mb is not None and not storage:
            self._warn(
                f"storage_mb is not enforced by the Docker engine's {info.driver} driver here; "
                "overlay2 on xfs mounted with pquota does"
            )
        return limits_config(limits, info, storage=storage)


def _check_engine(engine: Daemon, system: str) -> None:
    if engine.api < _OLDEST_API:
        spoken, oldest = (".".join(map(str, x)) for x in (engine.api, _OLDEST_API))
        raise SandboxUnavailable(
            f"the Docker engine at {engine.endpoint} is too old: it is version "
            f"{engine.version.version} with API {spoken}, and API {oldest} (version 19.03) is "
            "the oldest that will do"
        )
    if system != "linux":
        raise SandboxUnavailable(
            f"the Docker engine at {engine.endpoint} runs {system or 'another'} containers; "
            "sandboxes are Linux"
        )


def _check_runtime(engine: Daemon, known: Collection[str], runtime: str | None) -> None:
    if runtime is not None and runtime not in known:
        raise SandboxUnavailable(
            f"[docker] runtime: the Docker daemon at {engine.endpoint} has no runtime "
            f'"{runtime}"; it has {", ".join(sorted(known)) or "none"}. Add it under "runtimes" '
            "in the daemon's daemon.json and restart the daemon"
        )


async def _engines_name_servers(sandbox: ContainerSandbox) -> tuple[str, ...]:
    """Whom the engine gives to a container to ask for names, but for its host's loopback."""
    with temporary_folder() as folder:
        copy = folder / "resolv.conf"
        await sandbox.download("/etc/resolv.conf", copy, limit=_LARGEST_RESOLV_CONF)
        return name_servers(copy.read_text(errors="replace"))


async def _ended(task: "asyncio.Task[object]") -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("work in the background ended: %s", error)
