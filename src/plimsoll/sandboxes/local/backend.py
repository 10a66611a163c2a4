"""The local backend: starts sandboxes from namespaces and an overlay in milliseconds."""

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxUnavailable, SandboxUnsupported
from plimsoll.core.ids import Labels, short_id
from plimsoll.sandboxes.host.disk_space import FolderDisk, OpenDisk, watch_disk
from plimsoll.sandboxes.host.locks import remove_stale_locks
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.host.temporary import remove_leftovers
from plimsoll.sandboxes.local.channel import Channel
from plimsoll.sandboxes.local.error_messages import (
    disk_full_message,
    slow_disk_message,
    start_error,
    tmpfs_full_message,
)
from plimsoll.sandboxes.local.host.cgroups import Cgroup, Cgroups
from plimsoll.sandboxes.local.host.ext4 import find_file_system
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.removal_queue import RemovalQueue
from plimsoll.sandboxes.local.host.resources import HostResources
from plimsoll.sandboxes.local.host.upper_storage import DEFAULT_UPPER_MB, UpperMode, UpperStorage
from plimsoll.sandboxes.local.host.zygote_client import ZygoteClient, prepare_sandbox
from plimsoll.sandboxes.local.images.base import (
    HOST_PATHS,
    Base,
    host_base,
    root_base,
)
from plimsoll.sandboxes.local.images.builder import Builder
from plimsoll.sandboxes.local.images.image import LocalImage
from plimsoll.sandboxes.local.inventory import LocalInventory
from plimsoll.sandboxes.local.sandbox import LocalSandbox, allows_network
from plimsoll.sandboxes.local.streams import close_unclaimed_socket
from plimsoll.sandboxes.protocol import Image, ImageSource, Limits, OnOutput, SandboxSpec
from plimsoll.sandboxes.reaper import Reaper, reap

__all__ = ["LocalBackend", "LocalOptions"]

_START_SECONDS = 30.0
_DEFAULT_MAX_PROCESSES = 4096
"""Without a limit a sandbox could fill the host's process table."""
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Settings of the local backend."""

    roots: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Root file systems by the image name that `FROM` or `docker_image` uses."""
    host_paths: tuple[str, ...] = HOST_PATHS
    """Folders of the host, besides system folders, that a sandbox on the host's system sees."""
    home: Path | None = None
    allow_system_calls: frozenset[str] = frozenset()
    """The groups of system calls that a task may request: names of `core/permissions.py`."""
    upper: UpperMode = "auto"
    """Storage of the files that sandboxes write."""
    upper_mb: int = DEFAULT_UPPER_MB
    """The size limit of the files of a sandbox in memory."""


class LocalBackend:
    """The sandboxes of one process. Use it as an async context manager."""

    name = "local"

    def __init__(self, options: LocalOptions | None = None) -> None:
        self._options = options or LocalOptions()
        self._userns = not _has_capability(_CAP_SYS_ADMIN)
        self._zygote = ZygoteClient()
        self._live: set[LocalSandbox] = set()
        self._warnings: dict[str, None] = {}
        self._warned_of_host_base = False

    @property
    def warnings(self) -> Sequence[str]:
        return tuple(self._warnings)

    @property
    def zygote_pid(self) -> int | None:
        """The pid of the process that forks sandboxes. None if it does not run."""
        return self._zygote.pid

    def warn(self, text: str) -> None:
        """Add a warning that is shown once a run."""
        self._warnings.setdefault(text)

    async def __aenter__(self) -> Self:
        self._home = Home.open(self._options.home)
        self._disk = FolderDisk(
            self._home.sandboxes,
            lambda left: disk_full_message(self._home.path, left),
            as_root=not self._userns and _is_root(),
        )
        self._removals = RemovalQueue(self.warn, lambda: self._disk.short)
        self._slow_reason = find_file_system(self._home.sandboxes).slow
        self._upper_storage = UpperStorage(
            self._home,
            self._options.upper,
            self._options.upper_mb,
            slow_disk=bool(self._slow_reason),
            warn=self.warn,
        )
        inventory = LocalInventory(self._home)
        await reap(inventory)
        await asyncio.to_thread(remove_leftovers)
        await asyncio.to_thread(remove_stale_locks, self._home.locks)
        self._cgroups = Cgroups()
        self._builder = Builder(self, self._home)
        self._host_base = await asyncio.to_thread(
            host_base, self._home, self._options.host_paths, self._userns
        )
        try:
            await self._probe()
        except BaseException:
            await self._zygote.stop()
            await self._removals.close()
            raise
        self._background = AsyncExitStack()
        await self._background.enter_async_context(Reaper(inventory))
        await self._background.enter_async_context(watch_disk(self._check_disks))
        return self

    async def _check_disks(self) -> None:
        self._disk.check()
        for sandbox in tuple(self._live):
            if sandbox.in_memory:
                sandbox.check_disk()

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
        try:
            await self._background.__aexit__(exc_type, exc, traceback)
        finally:
            results = await asyncio.gather(*(s.close() for s in self._live), return_exceptions=True)
            await self._zygote.stop()
            await self._removals.close()
        for failed in results:
            if isinstance(failed, BaseException):
                raise failed

    async def _probe(self) -> None:
        """Start and close one sandbox, so that an unsuitable host fails before any work."""
        image = LocalImage(self._host_base)
        spec = SandboxSpec(Labels("probe", "probe", this_process(), time.time() + 60))
        await (await self.start(image, spec)).close()
        if self._upper_storage.may_use_memory:
            try:
                await (await self.start(image, spec, upper_mb=self._upper_storage.mb)).close()
            except SandboxUnavailable:
                if self._options.upper == "tmpfs":
                    raise
                self._upper_storage.use_disk()
        await self._removals.drain()

    def find_base(self, reference: str) -> Base:
        """The root file system of an image name."""
        roots = {_full_name(name): path for name, path in self._options.roots.items()}
        if (root := roots.get(_full_name(reference))) is not None:
            return root_base(self._home, root)
        if reference != "scratch":
            if not self._warned_of_host_base:
                self._warned_of_host_base = True
                self.warn(
                    f"{reference} is not under [local] roots: the host's own system is used for it "
                    "and for every other such image"
                )
            return self._host_base
        raise SandboxUnsupported("FROM scratch: the local backend needs a root file system")

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        return await self._builder.build(source, on_output)

    async def create(self, image: Image, spec: SandboxSpec) -> LocalSandbox:
        """Start a sandbox. Raises `SandboxUnsupported` for settings that cannot be provided."""
        if not isinstance(image, LocalImage):
            raise SandboxUnsupported(f"image {image.key} was not built by the local backend")
        self._check(spec)
        upper_mb = self._upper_storage.choose(
            image.key, spec.limits, memory_is_limited=self._limits_memory(spec.limits)
        )
        if self._slow_reason and upper_mb is None:
            in_memory = self._options.upper == "tmpfs"
            self.warn(slow_disk_message(self._home.path, self._slow_reason, in_memory=in_memory))
        return await self.start(image, spec, upper_mb=upper_mb)

    def _limits_memory(self, limits: Limits) -> bool:
        return limits.memory_mb is not None and self._cgroups.limits_memory

    def _check(self, spec: SandboxSpec) -> None:
        if spec.limits.gpus:
            raise SandboxUnsupported(
                f"the task needs {spec.limits.gpus} GPU(s); the local backend has none: "
                "use --backend docker on a host that has them"
            )
        allows_network(spec.network)
        if spec.limits.storage_mb is not None:
            self.warn("storage_mb is not enforced by the local backend")
        if self._cgroups.missing:
            self.warn(self._cgroups.missing)

    async def start(
        self,
        image: LocalImage,
        spec: SandboxSpec,
        *,
        durable: bool = False,
        upper_mb: int | None = None,
    ) -> LocalSandbox:
        """Start a sandbox. With `durable`, its files can be kept when it is closed.

        With `upper_mb`, its files are in memory and limited to that size.
        """
        self._check_system_calls(spec)
        if self._disk.short:
            await self._removals.drain()
        try:
            return await self._start(image, spec, durable, upper_mb)
        except OSError as error:
            source = error.filename or "a socket"
            raise SandboxUnavailable(
                f"cannot start a local sandbox: {source}: {error.strerror}"
            ) from None

    def _check_system_calls(self, spec: SandboxSpec) -> None:
        denied = [x for x in spec.system_calls if x not in self._options.allow_system_calls]
        if denied:
            names = ", ".join(f'"{name}"' for name in denied)
            raise SandboxUnsupported(
                "the task requests system calls that this run does not allow "
                f"(metadata.system_calls in its task.toml: {names}); add them to "
                "allow_system_calls under [local] in the config if you trust the task with them"
            )

    async def _start(
        self, image: LocalImage, spec: SandboxSpec, durable: bool, upper_mb: int | None
    ) -> LocalSandbox:
        name = short_id()
        cgroup = self._plan_cgroup(name, spec.limits, upper_mb)
        with contextlib.ExitStack() as sandbox_ends:
            (liveness, sandbox_liveness), (end, sandbox_end) = _two_socket_pairs()
            sandbox_ends.enter_context(sandbox_liveness)
            sandbox_ends.enter_context(sandbox_end)
            resources = HostResources(
                self._home.sandboxes / name, spec.labels.owner, cgroup, liveness, self._removals
            )
            channel = Channel(end)
            try:
                init_spec = prepare_sandbox(
                    self._home, self._home.sandboxes / name, image, spec, cgroup,
                    userns=self._userns, durable=durable, upper_mb=upper_mb,
                )  # fmt: skip
                cgroup.create()
                await self._zygote.fork(
                    init_spec, sandbox_end.fileno(), sandbox_liveness.fileno(), liveness
                )
                sandbox_ends.close()
                ready = await self._until_ready(channel)
                disk = self._disk if upper_mb is None else self._tmpfs_disk(ready, image, upper_mb)
            except BaseException:
                channel.ready.add_done_callback(close_unclaimed_socket)
                channel.close("the sandbox did not start")
                sandbox_ends.close()
                await run_to_completion(resources.release())
                raise
        sandbox = LocalSandbox(
            spec,
            channel=channel,
            resources=resources,
            disk=disk,
            env=spec.supplies.env_over({**image.env, **spec.env}),
            workdir=spec.workdir or image.workdir,
            user=image.user,
            on_close=self._live.discard,
        )
        self._live.add(sandbox)
        return sandbox

    def _tmpfs_disk(self, ready: Mapping[str, Any], image: LocalImage, mb: int) -> OpenDisk:
        """The tmpfs of a sandbox's files. Its init sent the descriptor."""
        if "fd" not in ready:
            raise SandboxUnavailable(f"cannot start a local sandbox: {os.strerror(errno.EMFILE)}")
        return OpenDisk(
            int(ready["fd"]),
            lambda left: tmpfs_full_message(mb, left),
            lambda: self._upper_storage.mark_outgrown(image.key),
        )

    def _plan_cgroup(self, name: str, limits: Limits, upper_mb: int | None) -> Cgroup:
        pids = limits.pids or _DEFAULT_MAX_PROCESSES
        # The kernel counts files in memory as memory of their writers.
        memory_mb = None if limits.memory_mb is None else limits.memory_mb + (upper_mb or 0)
        group_limits = Limits(cpus=limits.cpus, memory_mb=memory_mb, pids=pids)
        return self._cgroups.plan(name, group_limits)

    async def _until_ready(self, channel: Channel) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_START_SECONDS):
                reply = await asyncio.shield(channel.ready)
        except TimeoutError:
            raise SandboxUnavailable(
                f"the sandbox did not start within {_START_SECONDS:.0f} s"
            ) from None
        except SandboxUnavailable:
            stderr = self._zygote.stderr_text()
            raise SandboxUnavailable(f"the sandbox died during its start: {stderr}") from None
        if not reply.get("ready"):
            raise start_error(reply, self._home.path)
        return reply


def _full_name(image: str) -> str:
    """The full name of an image in a registry: `ubuntu` is `docker.io/library/ubuntu:latest`."""
    name, at, digest = image.partition("@")
    if ":" not in name.rpartition("/")[2] and not at:
        name += ":latest"
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"docker.io/{name}"
    return name + at + digest


def _two_socket_pairs() -> tuple[tuple[socket.socket, socket.socket], ...]:
    first = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        return first, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        for end in first:
            end.close()
        raise


def _is_root() -> bool:
    """Whether this process is root on the host, and not just in a user namespace."""
    uids = Path("/proc/self/uid_map").read_text().split()
    return os.geteuid() == 0 and uids == ["0", "0", str(2**32 - 1)]


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return os.geteuid() == 0
