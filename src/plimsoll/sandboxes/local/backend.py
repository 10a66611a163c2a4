"""The local backend: sandboxes from namespaces and an overlay, started in milliseconds."""

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
from plimsoll.sandboxes.local.host.init_spec import prepare_sandbox
from plimsoll.sandboxes.local.host.removal_queue import RemovalQueue
from plimsoll.sandboxes.local.host.resources import HostResources
from plimsoll.sandboxes.local.host.upper_storage import DEFAULT_UPPER_MB, UpperMode, UpperStorage
from plimsoll.sandboxes.local.host.zygote_client import ZygoteClient
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
_MOST_PROCESSES = 4096
"""Without a limit of its own a sandbox could use up the host's process table."""
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What the config says about the local backend."""

    roots: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Root file systems by the image name that a `FROM` or `docker_image` uses."""
    host_paths: tuple[str, ...] = HOST_PATHS
    """What a sandbox on the host's own system sees of it, besides the system's own places."""
    home: Path | None = None
    allow_system_calls: frozenset[str] = frozenset()
    """The groups of system calls that a task may ask for; names of `core/system_calls.py`."""
    upper: UpperMode = "auto"
    """Where the files that sandboxes write are kept."""
    upper_mb: int = DEFAULT_UPPER_MB
    """What the files of a sandbox may take where they are kept in memory."""


class LocalBackend:
    """One process's sandboxes. Use it as an async context manager."""

    name = "local"

    def __init__(self, options: LocalOptions | None = None) -> None:
        self._options = options or LocalOptions()
        self._userns = not _has_capability(_CAP_SYS_ADMIN)
        self._forker = ZygoteClient()
        self._live: set[LocalSandbox] = set()
        self._warnings: dict[str, None] = {}
        self._said_host_base = False

    @property
    def warnings(self) -> Sequence[str]:
        return tuple(self._warnings)

    @property
    def zygote_pid(self) -> int | None:
        """The process that forks sandboxes, while it runs."""
        return self._forker.pid

    def warn(self, text: str) -> None:
        """Note something to be said once a run."""
        self._warnings.setdefault(text)

    async def __aenter__(self) -> Self:
        self._home = Home.open(self._options.home)
        self._disk = FolderDisk(
            self._home.sandboxes,
            lambda left: disk_full_message(self._home.path, left),
            as_root=not self._userns and _is_root(),
        )
        self._remover = RemovalQueue(self.warn, lambda: self._disk.short)
        self._slow = find_file_system(self._home.sandboxes).slow
        self._uppers = UpperStorage(
            self._home,
            self._options.upper,
            self._options.upper_mb,
            slow_disk=bool(self._slow),
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
            await self._prove_it_works()
        except BaseException:
            await self._forker.stop()
            await self._remover.close()
            raise
        self._working = AsyncExitStack()
        await self._working.enter_async_context(Reaper(inventory))
        await self._working.enter_async_context(watch_disk(self._look_at_disk))
        return self

    async def _look_at_disk(self) -> None:
        self._disk.look()
        for sandbox in tuple(self._live):
            if sandbox.in_memory:
                sandbox.look_at_disk()

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
            await self._working.__aexit__(exc_type, exc, traceback)
        finally:
            results = await asyncio.gather(*(s.close() for s in self._live), return_exceptions=True)
            await self._forker.stop()
            await self._remover.close()
        for failed in results:
            if isinstance(failed, BaseException):
                raise failed

    async def _prove_it_works(self) -> None:
        """Start and close one sandbox, so that a host that cannot says so before any work."""
        image = LocalImage(self._host_base)
        spec = SandboxSpec(Labels("probe", "probe", this_process(), time.time() + 60))
        await (await self.start(image, spec)).close()
        if self._uppers.may_use_memory:
            try:
                await (await self.start(image, spec, upper_mb=self._uppers.mb)).close()
            except SandboxUnavailable:
                if self._options.upper == "tmpfs":
                    raise
                self._uppers.stay_on_disk()
        await self._remover.drain()

    def find_base(self, reference: str) -> Base:
        """The root file system that an image name stands for."""
        roots = {_full_name(name): path for name, path in self._options.roots.items()}
        if (root := roots.get(_full_name(reference))) is not None:
            return root_base(self._home, root)
        if reference != "scratch":
            if not self._said_host_base:
                self._said_host_base = True
                self.warn(
                    f"{reference} is not under [local] roots: it and every other such image "
                    "is taken to be this host's own system"
                )
            return self._host_base
        raise SandboxUnsupported("FROM scratch: the local backend starts from a root file system")

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        return await self._builder.build(source, on_output)

    async def create(self, image: Image, spec: SandboxSpec) -> LocalSandbox:
        """Start a sandbox. What it asks for and cannot have is refused here."""
        if not isinstance(image, LocalImage):
            raise SandboxUnsupported(f"image {image.key} was not built by the local backend")
        self._check(spec)
        upper_mb = self._uppers.choose(
            image.key, spec.limits, memory_is_limited=self._limits_memory(spec.limits)
        )
        if self._slow and upper_mb is None:
            in_memory = self._options.upper == "tmpfs"
            self.warn(slow_disk_message(self._home.path, self._slow, in_memory=in_memory))
        return await self.start(image, spec, upper_mb=upper_mb)

    def _limits_memory(self, limits: Limits) -> bool:
        return limits.memory_mb is not None and self._cgroups.limits_memory

    def _check(self, spec: SandboxSpec) -> None:
        if spec.limits.gpus:
            raise SandboxUnsupported(
                f"the task wants {spec.limits.gpus} GPU(s); the local backend gives none: "
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
        """Start a sandbox; what a durable one writes may be kept.

        With `upper_mb` its files are in memory and take no more than that.
        """
        self._check_system_calls(spec)
        if self._disk.short:
            await self._remover.drain()
        try:
            return await self._start(image, spec, durable, upper_mb)
        except OSError as error:
            what = error.filename or "a socket"
            raise SandboxUnavailable(
                f"cannot start a local sandbox: {what}: {error.strerror}"
            ) from None

    def _check_system_calls(self, spec: SandboxSpec) -> None:
        closed = [x for x in spec.system_calls if x not in self._options.allow_system_calls]
        if closed:
            names = ", ".join(f'"{name}"' for name in closed)
            raise SandboxUnsupported(
                "the task asks for system calls that this run does not allow "
                f"(metadata.system_calls in its task.toml: {names}); add them to "
                "allow_system_calls under [local] in the config if you trust the task with them"
            )

    async def _start(
        self, image: LocalImage, spec: SandboxSpec, durable: bool, upper_mb: int | None
    ) -> LocalSandbox:
        name = short_id()
        cgroup = self._plan_groups(name, spec.limits, upper_mb)
        with contextlib.ExitStack() as theirs:
            (life, their_life), (end, their_end) = _two_pairs()
            theirs.enter_context(their_life)
            theirs.enter_context(their_end)
            remains = HostResources(
                self._home.sandboxes / name, spec.labels.owner, cgroup, life, self._remover
            )
            channel = Channel(end)
            try:
                inside = prepare_sandbox(
                    self._home, self._home.sandboxes / name, image, spec, cgroup,
                    userns=self._userns, durable=durable, upper_mb=upper_mb,
                )  # fmt: skip
                cgroup.make()
                await self._forker.fork(inside, their_end.fileno(), their_life.fileno(), life)
                theirs.close()
                ready = await self._until_ready(channel)
                disk = self._disk if upper_mb is None else self._memory(ready, image, upper_mb)
            except BaseException:
                channel.ready.add_done_callback(close_unclaimed_socket)
                channel.close("the sandbox did not start")
                theirs.close()
                await run_to_completion(remains.clear())
                raise
        sandbox = LocalSandbox(
            spec,
            channel=channel,
            remains=remains,
            disk=disk,
            env=spec.supplies.env_over({**image.env, **spec.env}),
            workdir=spec.workdir or image.workdir,
            user=image.user,
            on_close=self._live.discard,
        )
        self._live.add(sandbox)
        return sandbox

    def _memory(self, ready: Mapping[str, Any], image: LocalImage, mb: int) -> OpenDisk:
        """The tmpfs that a sandbox's files are in; init sent a descriptor of it."""
        if "fd" not in ready:
            raise SandboxUnavailable(f"cannot start a local sandbox: {os.strerror(errno.EMFILE)}")
        return OpenDisk(
            int(ready["fd"]),
            lambda left: tmpfs_full_message(mb, left),
            lambda: self._uppers.outgrew(image.key),
        )

    def _plan_groups(self, name: str, limits: Limits, upper_mb: int | None) -> Cgroup:
        pids = limits.pids or _MOST_PROCESSES
        # The kernel counts files in memory as memory of who writes them.
        memory_mb = None if limits.memory_mb is None else limits.memory_mb + (upper_mb or 0)
        wanted = Limits(cpus=limits.cpus, memory_mb=memory_mb, pids=pids)
        return self._cgroups.plan(name, wanted)

    async def _until_ready(self, channel: Channel) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_START_SECONDS):
                said = await asyncio.shield(channel.ready)
        except TimeoutError:
            raise SandboxUnavailable(
                f"the sandbox did not start within {_START_SECONDS:.0f} s"
            ) from None
        except SandboxUnavailable:
            words = self._forker.last_words()
            raise SandboxUnavailable(f"the sandbox died while it started: {words}") from None
        if not said.get("ready"):
            raise start_error(said, self._home.path)
        return said


def _full_name(image: str) -> str:
    """An image's name as a registry knows it: `ubuntu` is `docker.io/library/ubuntu:latest`."""
    name, at, digest = image.partition("@")
    if ":" not in name.rpartition("/")[2] and not at:
        name += ":latest"
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"docker.io/{name}"
    return name + at + digest


def _two_pairs() -> tuple[tuple[socket.socket, socket.socket], ...]:
    first = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        return first, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        for end in first:
            end.close()
        raise


def _is_root() -> bool:
    """Whether this is root itself, not who is called so in a user namespace."""
    uids = Path("/proc/self/uid_map").read_text().split()
    return os.geteuid() == 0 and uids == ["0", "0", str(2**32 - 1)]


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return os.geteuid() == 0
