"""A sandbox whose pid 1 is Plimsoll's init, controlled over one stream: a container or a pod."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, Self

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.ids import Labels
from plimsoll.core.permissions import NetworkPolicy
from plimsoll.sandboxes.container.channel import Channel, InitStream
from plimsoll.sandboxes.container.commands import Command, run_command
from plimsoll.sandboxes.container.frames import Kind, RequestEnd
from plimsoll.sandboxes.container.tree_streams import path_field, stream_in, stream_out
from plimsoll.sandboxes.container.tunnels import ADDRESS, Listener
from plimsoll.sandboxes.host.disk_space import Disk, DiskSpace
from plimsoll.sandboxes.protocol import (
    KEEP_OUTPUT,
    ExecResult,
    FullDisk,
    OnConnection,
    OnOutput,
    SandboxSpec,
    SandboxStatus,
    Transfer,
)
from plimsoll.sandboxes.transfers import (
    pack_from_host,
    remove_on_failure,
    transfer_error,
    unpack_to_host,
)
from plimsoll.sandboxes.trees import Rules

__all__ = ["ContainerHandle", "ContainerSandbox"]

_RESPONSE_SECONDS = 20.0
_WALK_SECONDS = 120.0
_QUOTA_SLACK = 1.1
"""Tolerance for the size of a file system with a quota, which its driver rounds."""
_CLOSED = "the sandbox was closed"


class ContainerHandle(Protocol):
    """The backend's control of one container."""

    @property
    def id(self) -> str: ...

    async def exit_reason(self) -> str:
        """The reason why the stream ended unexpectedly."""
        ...

    async def set_network(self, policy: NetworkPolicy) -> Mapping[str, str]:
        """Apply a policy. Returns the variables that commands need under it."""
        ...

    async def remove(self) -> None:
        """Remove the container and all that belongs to it, in bounded time. May be repeated."""
        ...


class ContainerSandbox:
    """A sandbox in a container. Created by `start`. Every wait is bounded or set by the caller."""

    def __init__(
        self,
        stream: InitStream,
        spec: SandboxSpec,
        *,
        handle: ContainerHandle,
        env: Mapping[str, str],
        workdir: str,
        user: str,
        on_close: Callable[["ContainerSandbox"], None],
        disk: Disk | None = None,
        quota_mb: int | None = None,
    ) -> None:
        self._labels = spec.labels
        self._supplies = spec.supplies
        self._disk = disk
        self._quota_mb = quota_mb
        self._handle = handle
        self._env = dict(env)
        self._network: NetworkPolicy | None = None
        """The policy set last, if any."""
        self._network_env: Mapping[str, str] = {}
        self._workdir = workdir
        self._user = user or "root"
        self._on_close = on_close
        self._channel = Channel(stream, handle.exit_reason)
        self._listeners: set[Listener] = set()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        stream: InitStream,
        spec: SandboxSpec,
        *,
        handle: ContainerHandle,
        env: Mapping[str, str],
        workdir: str,
        user: str,
        on_close: Callable[["ContainerSandbox"], None],
        disk: Disk | None = None,
        quota_mb: int | None = None,
        ready_seconds: float = 30.0,
    ) -> Self:
        """Wait until init answers on the stream; otherwise the sandbox is closed and removed.

        `disk` is the disk of its host, `quota_mb` the enforced quota on it, if any.
        """
        sandbox = cls(
            stream,
            spec,
            handle=handle,
            env=env,
            workdir=workdir,
            user=user,
            on_close=on_close,
            disk=disk,
            quota_mb=quota_mb,
        )
        try:
            await asyncio.wait([sandbox._channel.ready], timeout=ready_seconds)
            if not sandbox._channel.ready.done():
                sandbox._channel.close(
                    f"the sandbox's init did not answer within {ready_seconds:g} s"
                )
            sandbox._channel.ready.result()
        except BaseException:
            await run_to_completion(sandbox.close())
            raise
        return sandbox

    @property
    def id(self) -> str:
        return self._handle.id

    @property
    def labels(self) -> Labels:
        return self._labels

    @property
    def workdir(self) -> str:
        return self._workdir

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        keep: int = KEEP_OUTPUT,
    ) -> ExecResult:
        if not command:
            raise ValueError("the command is empty")
        shell = isinstance(command, str)
        request = Command(
            argv=[command] if isinstance(command, str) else list(command),
            shell=shell,
            cwd=cwd or self._workdir,
            user=user or self._user,
            env=self._supplies.path_over({**self._env, **self._network_env, **(env or {})}),
        )
        return await run_command(
            self._channel, request, stdin=stdin, timeout=timeout, on_output=on_output, keep=keep
        )

    async def upload(self, source: Path, target: str) -> Transfer:
        what = f"upload of {source} to {target}"
        with self._name_full_disk():
            return await stream_in(self._channel, target, pack_from_host(source), what)

    async def download(
        self, source: str, target: Path, *, limit: int | None = None, entries: int | None = None
    ) -> Transfer:
        host_side = unpack_to_host(target, Rules(limit=limit, entries=entries))
        async with remove_on_failure(target):
            return await stream_out(self._channel, source, host_side, f"download of {source}")

    async def empty(self, path: str, *, mode: int = 0o755) -> None:
        what = f"{path} could not be emptied"
        end = await self._request(Kind.EMPTY, path_field(path, what), f"{mode:o}".encode())
        if end.error or end.signal is not None:
            with self._name_full_disk():
                raise transfer_error(f"{what}: {end.error or 'killed'}")

    async def set_network(self, policy: NetworkPolicy) -> None:
        if self._channel.gone is not None:
            raise SandboxUnavailable(self._channel.gone)
        self._network_env = dict(await self._handle.set_network(policy))
        self._network = policy

    async def serve(self, port: int, on_connection: OnConnection) -> Listener:
        request = self._channel.request(Kind.LISTEN, [ADDRESS.encode(), str(port).encode()])
        # Registered before init's response is read: a connection may follow immediately.
        listener = Listener(self._channel, request.number, on_connection, self._listeners.discard)
        self._listeners.add(listener)
        try:
            end = await self._response(request.end, _RESPONSE_SECONDS)
            if end.error or end.port is None:
                reason = end.error or "init reported no port"
                raise SandboxError(f"cannot listen on {ADDRESS}:{port} in the sandbox: {reason}")
        except BaseException:
            await run_to_completion(listener.close())
            raise
        listener.port = end.port
        return listener

    async def kill_all(self) -> None:
        end = await self._request(Kind.KILL_ALL, seconds=_RESPONSE_SECONDS)
        if end.error:
            self._channel.close(end.error)
            raise SandboxUnavailable(end.error)

    async def status(self) -> SandboxStatus:
        try:
            end = await self._request(Kind.STATUS, seconds=_RESPONSE_SECONDS)
        except SandboxUnavailable as error:
            return SandboxStatus(alive=False, reason=str(error), full_disk=self._full_disk)
        self._note_disk(end)
        return SandboxStatus(
            alive=True,
            processes=end.processes,
            oom_kills=end.oom_kills,
            full_disk=self._full_disk,
        )

    def check_disk(self) -> None:
        """Request the disk space from init without waiting; a slow response is no failure."""
        end = self._channel.request(Kind.STATUS).end
        end.add_done_callback(lambda end: end.exception() or self._note_disk(end.result()))

    def _note_disk(self, end: RequestEnd) -> None:
        """Note the free space of the host's disk, unless it is that of the sandbox's quota."""
        quota = (self._quota_mb or 0) * _QUOTA_SLACK * (1 << 20)
        if self._disk is not None and end.disk_size is not None and end.disk_size > quota:
            self._disk.note(
                DiskSpace(
                    end.disk_size,
                    end.disk_free,
                    end.disk_available,
                    end.disk_files,
                    as_root=bool(end.disk_as_root),
                )
            )

    def _name_full_disk(self) -> AbstractContextManager[None]:
        """Name the host's full disk in errors, unless the sandbox has a quota of its own."""
        if self._disk is None or self._quota_mb is not None:
            return nullcontext()
        return self._disk.named()

    @property
    def _full_disk(self) -> FullDisk | None:
        return None if self._disk is None else self._disk.full

    async def baseline(self) -> int:
        end = await self._request(Kind.BASELINE)
        if end.error or end.entries is None:
            raise SandboxUnavailable(f"the baseline of the sandbox could not be taken: {end.error}")
        return end.entries

    async def reset(self) -> str:
        served = list(self._listeners)
        for listener in served:
            await listener.close()
        end = await self._request(Kind.RESET)
        if end.signal is not None:
            return "the process that resets the file system was killed"
        if served and self._network is not None:
            await self.set_network(self._network)  # the handle may have served the egress proxy
        return end.doubt or end.error

    async def _request(
        self, kind: Kind, *fields: bytes, seconds: float = _WALK_SECONDS
    ) -> RequestEnd:
        return await self._response(self._channel.request(kind, fields).end, seconds)

    async def _response(self, end: "asyncio.Future[RequestEnd]", seconds: float) -> RequestEnd:
        """Wait for init's response; a sandbox that does not answer in time is closed."""
        done, _ = await asyncio.wait([end], timeout=seconds)
        if not done:
            self._channel.close(f"the sandbox does not answer within {seconds:g} s")
        return end.result()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._channel.close(_CLOSED)
        try:
            await self._channel.wait_closed()
            await self._handle.remove()
        finally:
            for listener in list(self._listeners):
                await listener.close()
            self._on_close(self)
