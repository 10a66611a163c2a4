"""The Docker backend: sandboxes as containers of a daemon, on this host or another."""

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
    DaemonError,
    DaemonUnreachable,
    ResourceRemoved,
    full_disk_error,
)
from plimsoll.sandboxes.docker.docker_container import DockerContainer
from plimsoll.sandboxes.docker.files.host_files import HostFiles
from plimsoll.sandboxes.docker.host_locks import HostLocks
from plimsoll.sandboxes.docker.images.image_store import DockerImage, ImageStore
from plimsoll.sandboxes.docker.images.pruning import prune_images
from plimsoll.sandboxes.docker.inventory import DockerInventory
from plimsoll.sandboxes.docker.network.run_networks import RunNetworks, name_servers
from plimsoll.sandboxes.docker.options import DockerOptions
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
_RECONNECT_SECONDS = 0.5

_T = TypeVar("_T")
_MAX_RESOLV_CONF = 1 << 20


class DockerBackend:
    """The sandboxes of one process on one daemon. Use it as an async context manager."""

    name = "docker"

    def __init__(self, options: DockerOptions | None = None) -> None:
        self._options = options or DockerOptions()
        self._warnings: dict[str, None] = {}
        self._containers: set[DockerContainer] = set()
        """Every container that may exist: added before creation, discarded after removal."""
        self._unremoved: set[DockerContainer] = set()
        """The containers that could not be removed yet."""
        self._stack = AsyncExitStack()
        self._dns = self._options.dns

    @property
    def warnings(self) -> Sequence[str]:
        return tuple(self._warnings)

    @property
    def daemon(self) -> Daemon:
        """The client of the daemon, while the backend is entered."""
        return self._daemon

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
        daemon = Daemon(options.endpoint(os.environ))
        self._daemon = await self._stack.enter_async_context(daemon)
        info = await daemon.info()
        _check_daemon(daemon, info.os_type)
        _check_runtime(daemon, info.runtimes, options.runtime)
        self._disk = Disk(lambda left: str(full_disk_error(str(daemon.endpoint), left)))
        inventory = DockerInventory(daemon)
        reaping = asyncio.create_task(reap(inventory))
        self._stack.push_async_callback(_cancel, reaping)
        await asyncio.to_thread(remove_leftovers)
        await asyncio.to_thread(remove_stale_locks, Home.find(options.home).locks)
        locks = HostLocks(str(daemon.endpoint), options.home)
        self._files = HostFiles(daemon, init_binary(info.architecture), options.home)
        self._stack.push_async_callback(self._files.volumes.close)
        self._networks = RunNetworks(daemon, self._files.ensure_image, locks)
        self._stack.push_async_callback(self._networks.close)
        self._images = ImageStore(daemon, os.environ, locks)
        self._projects = ComposeLauncher(daemon, self._images, os.environ, options.runtime)
        self._stack.push_async_callback(self._projects.close)
        await self._files.open()
        await self._start_probe()
        await asyncio.wait([reaping])
        if (error := reaping.exception()) is not None:
            self._warn(f"leftovers of dead runs could not be removed from the daemon: {error}")
        await self._stack.enter_async_context(Reaper(inventory))
        await self._stack.enter_async_context(watch_disk(self._check_disk))
        for work in (
            watch_daemon(daemon, self._disconnect_all),
            self._collect_images(),
            self._retry_removals(),
        ):
            self._stack.push_async_callback(_cancel, asyncio.create_task(work))

    async def _check_disk(self) -> None:
        """Ask one sandbox for its free space: the daemon does not report it and may be remote."""
        sandboxes = [
            container.sandbox for container in self._containers if container.sandbox is not None
        ]
        for sandbox in random.sample(sandboxes, len(sandboxes)):
            with suppress(SandboxUnavailable):  # it is gone: ask the next one
                sandbox.check_disk()
                return

    async def _collect_images(self) -> None:
        """Prune Plimsoll's images periodically, until cancelled."""
        while True:
            try:
                await prune_images(
                    self._daemon,
                    keep_bytes=self._options.keep_images_gb * 1e9,
                    keep_days=self._options.keep_images_days,
                    now=time.time(),
                    in_use=self._images.in_use,
                )
            except SandboxError as error:
                log.warning("unused images could not be pruned: %s", error)
            await asyncio.sleep(_COLLECT_EVERY)

    async def _retry_removals(self) -> None:
        """Retry failed removals periodically, until cancelled."""
        while True:
            await asyncio.sleep(_RETRY_EVERY)
            left = list(self._unremoved)
            await asyncio.gather(*map(self._discard, left), return_exceptions=True)

    async def _start_probe(self) -> None:
        """Start and close one sandbox, so that a daemon that cannot fails before any trial."""
        labels = Labels("probe", "probe", this_process(), time.time() + 600)
        image = await self._files.ensure_image()
        sandbox = await self._start(await self._images.find(image), SandboxSpec(labels))
        try:
            if not self._dns:
                self._dns = await _default_name_servers(sandbox)
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
        """Close everything. Failed removals are warnings, so that no result of a run is lost."""
        results = await asyncio.gather(
            *(self._discard(container) for container in list(self._containers)),
            return_exceptions=True,
        )
        failed = [error for error in results if error is not None]
        try:
            await self._stack.__aexit__(exc_type, exc, traceback)
        except SandboxError as error:
            failed.append(error)
        for error in failed:
            if not isinstance(error, SandboxError):
                raise error
        if failed:
            runs = sorted({container.run for container in self._unremoved})
            remedy = f"plimsoll clean {runs[0]}" if len(runs) == 1 else "plimsoll clean --expired"
            more = f", and {len(failed) - 1:,} more" if len(failed) > 1 else ""
            self._warn(f"{failed[0]}{more}; `{remedy}` removes the rest, as does the next run")

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        return await self._retry_restarts(lambda: self._build(source, on_output))

    async def _build(self, source: ImageSource, on_output: OnOutput | None) -> Image:
        if source.compose is None:
            return await self._images.build(source, on_output)
        image = await self._projects.build(source, on_output)
        for warning in image.warnings:
            self._warn(warning)
        return image

    async def create(self, image: Image, spec: SandboxSpec) -> ContainerSandbox:
        """Start a sandbox. Raises `SandboxUnsupported` for an unsupported specification."""
        if spec.system_calls:
            self._warn(
                "metadata.system_calls of a task is not applied by the Docker backend: the "
                "daemon's seccomp profile decides which system calls a container may use"
            )
        if isinstance(image, ComposeImage):
            return await self._retry_restarts(lambda: self._start_project(image, spec))
        if not isinstance(image, DockerImage):
            raise SandboxUnsupported(f"image {image.key} was not built by the Docker backend")
        return await self._retry_restarts(lambda: self._start(image, spec), SandboxUnavailable)

    async def _retry_restarts(
        self, work: Callable[[], Awaitable[_T]], again: type[SandboxUnavailable] = ResourceRemoved
    ) -> _T:
        """Retry work across restarts of the daemon. Failed work must leave nothing behind.

        A daemon that shuts down refuses connections, drops open ones, and answers with errors of
        all kinds. So after any error the work is repeated if the daemon dropped a connection or
        accepts no new one, for up to `wait_seconds` after the first error. If the daemon answers,
        the work is repeated once after an error of type `again`: the daemon may just have come
        back, or a network or volume of the work was removed.
        """
        deadline: float | None = None
        may_repeat = True
        while True:
            try:
                return await work()
            except (SandboxUnavailable, BuildError, DaemonError) as error:
                deadline = deadline or time.monotonic() + self._options.wait_seconds
                if isinstance(error, ResourceRemoved):
                    self._forget(error)
                was_unreachable = isinstance(error, DaemonUnreachable) or not await self._answers()
                if was_unreachable:
                    if not await self._wait_for_daemon(deadline):
                        raise
                    await self._projects.sweep()
                elif may_repeat and isinstance(error, again):
                    may_repeat = False
                else:
                    raise

    def _forget(self, removed: ResourceRemoved) -> None:
        log.warning("%s; it is created again", removed)
        for name in removed.names:
            self._networks.forget(name)
            self._files.volumes.forget(name)

    async def _answers(self) -> bool:
        """Whether the daemon accepts a new connection.

        A daemon that shuts down still answers on open connections.
        """
        try:
            async with Daemon(self._daemon.endpoint):
                return True
        except SandboxError:
            return False

    async def _wait_for_daemon(self, deadline: float) -> bool:
        """Wait until the daemon answers. Returns False after the deadline."""
        while time.monotonic() < deadline:
            if await self._answers():
                return True
            await asyncio.sleep(_RECONNECT_SECONDS)
        return False

    async def _start_project(self, image: ComposeImage, spec: SandboxSpec) -> ContainerSandbox:
        """Start the services of a compose file, then its main as the sandbox."""
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
        files = await self._files.prepare(image.reference, spec)
        container_spec = ContainerSpec(
            name=f"plimsoll-{short_id()}",
            image=image.reference,
            labels=spec.labels,
            limits=await self._limits(spec.limits),
            memory_mb=spec.limits.memory_mb,
            mounts=files.mounts,
            workdir=spec.workdir or image.workdir,
            network=await self._network(spec),
            dns=self._dns,
            runtime=self._options.runtime,
        )
        container = (
            DockerContainer(self._daemon, self._networks, container_spec)
            if project is None
            else MainContainer(self._daemon, self._networks, container_spec, project)
        )
        self._containers.add(container)
        try:
            kind = ContainerSandbox if project is None else ComposeSandbox
            sandbox = await kind.start(
                await container.start(files),
                spec,
                handle=container,
                env=spec.supplies.env_over({**image.env, **spec.env}),
                workdir=container_spec.workdir,
                user=image.user or "root",
                on_close=self._closed,
                disk=self._disk,
                quota_mb=spec.limits.storage_mb if "StorageOpt" in container_spec.limits else None,
            )
            container.sandbox = sandbox
            if spec.network.mode is NetworkMode.ALLOWLIST:
                await sandbox.set_network(spec.network)
        except BaseException:
            await run_to_completion(self._discard(container))
            raise
        return sandbox

    async def _discard(self, container: DockerContainer) -> None:
        """Close the sandbox of a container, if any, and remove the container."""
        if container.sandbox is not None:
            with suppress(SandboxError):  # a repeated close may succeed
                await container.sandbox.close()
        self._unremoved.add(container)
        await container.remove()
        self._containers.discard(container)
        self._unremoved.discard(container)

    def _closed(self, sandbox: ContainerSandbox) -> None:
        self._containers = {container for container in self._containers if not container.removed}
        self._unremoved |= {
            container for container in self._containers if container.sandbox is sandbox
        }

    async def _disconnect_all(self, reason: str) -> None:
        for container in list(self._containers):
            await container.disconnect(reason)

    async def _network(self, spec: SandboxSpec) -> str:
        if spec.network.mode is NetworkMode.PUBLIC:
            return await self._networks.of_run(spec.labels)
        return NO_NETWORK_MODE

    async def _limits(self, limits: Limits) -> dict[str, object]:
        info = await self._daemon.info()
        if limits.cpus is not None and limits.cpus > info.cpus:
            self._warn(
                f"a task requests {limits.cpus:g} CPUs, and the Docker daemon has {info.cpus}: "
                "the task may use all of them"
            )
        if limits.memory_mb is not None and not info.memory_limit:
            self._warn(
                "memory_mb is not enforced: the kernel of the Docker daemon does not support it"
            )
        elif not info.swap_limit:
            self._warn("sandboxes may swap: the kernel of the Docker daemon cannot limit swap")
        if not info.pids_limit:
            self._warn(
                "the number of processes is not limited: the Docker daemon does not support it"
            )
        storage = limits.storage_mb is not None and await self._files.limits_storage()
        if limits.storage_mb is not None and not storage:
            self._warn(
                f"storage_mb is not enforced by the Docker daemon's {info.driver} driver here; "
                "overlay2 on xfs mounted with pquota does"
            )
        return limits_config(limits, info, storage=storage)


def _check_daemon(daemon: Daemon, system: str) -> None:
    if daemon.api < _OLDEST_API:
        spoken, oldest = (".".join(map(str, x)) for x in (daemon.api, _OLDEST_API))
        raise SandboxUnavailable(
            f"the Docker daemon at {daemon.endpoint} is too old: it is version "
            f"{daemon.version.version} with API {spoken}, and API {oldest} (version 19.03) or "
            "later is required"
        )
    if system != "linux":
        raise SandboxUnavailable(
            f"the Docker daemon at {daemon.endpoint} runs {system or 'another'} containers; "
            "sandboxes are Linux"
        )


def _check_runtime(daemon: Daemon, runtimes: Collection[str], runtime: str | None) -> None:
    if runtime is not None and runtime not in runtimes:
        raise SandboxUnavailable(
            f"[docker] runtime: the Docker daemon at {daemon.endpoint} has no runtime "
            f'"{runtime}"; it has {", ".join(sorted(runtimes)) or "none"}. Add it under "runtimes" '
            "in the daemon's daemon.json and restart the daemon"
        )


async def _default_name_servers(sandbox: ContainerSandbox) -> tuple[str, ...]:
    """The name servers that the daemon gives to a container, without loopback ones."""
    with temporary_folder() as folder:
        copy = folder / "resolv.conf"
        await sandbox.download("/etc/resolv.conf", copy, limit=_MAX_RESOLV_CONF)
        return name_servers(copy.read_text(errors="replace"))


async def _cancel(task: "asyncio.Task[object]") -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a background task failed: %s", error)
