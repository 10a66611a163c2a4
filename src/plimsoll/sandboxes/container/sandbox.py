"""A sandbox whose pid 1 is our own init, spoken to over one stream: in a container, in a pod."""

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

_ANSWER_SECONDS = 20.0
_WALK_SECONDS = 120.0
_QUOTA_SLACK = 1.1
"""What a file system with a quota says of its size is rounded by its driver."""
_CLOSED = "the sandbox was closed"


class ContainerHandle(Protocol):
    """The backend's side of one sandbox."""

    @property
    def id(self) -> str: ...

    async def why_gone(self) -> str:
        """Why the stream ended though nobody closed it."""
        ...

    async def set_network(self, policy: NetworkPolicy) -> Mapping[str, str]:
        """Apply a policy; the environment that commands need under it."""
        ...

    async def remove(self) -> None:
        """Remove everything of it, in a bounded time. May be called again."""
        ...


class ContainerSandbox:
    """Made by `start`. Every wait in it is bounded or the caller's own."""

    def __init__(
        self,
        wire: InitStream,
        spec: SandboxSpec,
        *,
        keeper: ContainerHandle,
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
        self._keeper = keeper
        self._env = dict(env)
        self._network: NetworkPolicy | None = None
        """The policy that was last set, if any was."""
        self._network_env: Mapping[str, str] = {}
        self._workdir = workdir
        self._user = user or "root"
        self._on_close = on_close
        self._channel = Channel(wire, keeper.why_gone)
        self._listeners: set[Listener] = set()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        wire: InitStream,
        spec: SandboxSpec,
        *,
        keeper: ContainerHandle,
        env: Mapping[str, str],
        workdir: str,
        user: str,
        on_close: Callable[["ContainerSandbox"], None],
        disk: Disk | None = None,
        quota_mb: int | None = None,
        ready_seconds: float = 30.0,
    ) -> Self:
        """Wait until init answers on the wire. One that does not is closed, and so removed.

        `disk` is its host's, and `quota_mb` what it may use of that, where that is enforced.
        """
        made = cls(
            wire,
            spec,
            keeper=keeper,
            env=env,
            workdir=workdir,
            user=user,
            on_close=on_close,
            disk=disk,
            quota_mb=quota_mb,
        )
        try:
            await asyncio.wait([made._channel.ready], timeout=ready_seconds)
            if not made._channel.ready.done():
                made._channel.close(f"the sandbox's init did not answer within {ready_seconds:g} s")
            made._channel.ready.result()
        except BaseException:
            await run_to_completion(made.close())
            raise
        return made

    @property
    def id(self) -> str:
        return self._keeper.id

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
            raise ValueError("there is no command to run")
        shell = isinstance(command, str)
        ordered = Command(
            argv=[command] if isinstance(command, str) else list(command),
            shell=shell,
            cwd=cwd or self._workdir,
            user=user or self._user,
            env=self._supplies.path_over({**self._env, **self._network_env, **(env or {})}),
        )
        return await run_command(
            self._channel, ordered, stdin=stdin, timeout=timeout, on_output=on_output, keep=keep
        )

    async def upload(self, source: Path, target: str) -> Transfer:
        what = f"upload of {source} to {target}"
        with self._naming_disk():
            return await stream_in(self._channel, target, pack_from_host(source), what)

    async def download(
        self, source: str, target: Path, *, limit: int | None = None, entries: int | None = None
    ) -> Transfer:
        here = unpack_to_host(target, Rules(limit=limit, entries=entries))
        async with remove_on_failure(target):
            return await stream_out(self._channel, source, here, f"download of {source}")

    async def empty(self, path: str, *, mode: int = 0o755) -> None:
        what = f"{path} could not be emptied"
        said = await self._ask(Kind.EMPTY, path_field(path, what), f"{mode:o}".encode())
        if said.error or said.signal is not None:
            with self._naming_disk():
                raise transfer_error(f"{what}: {said.error or 'killed'}")

    async def set_network(self, policy: NetworkPolicy) -> None:
        if self._channel.gone is not None:
            raise SandboxUnavailable(self._channel.gone)
        self._network_env = dict(await self._keeper.set_network(policy))
        self._network = policy

    async def serve(self, port: int, on_connection: OnConnection) -> Listener:
        request = self._channel.request(Kind.LISTEN, [ADDRESS.encode(), str(port).encode()])
        # Known before init's answer is read: a connection may follow that at once.
        listener = Listener(self._channel, request.number, on_connection, self._listeners.discard)
        self._listeners.add(listener)
        try:
            said = await self._answer(request.end, _ANSWER_SECONDS)
            if said.error or said.port is None:
                why = said.error or "init did not say where"
                raise SandboxError(f"cannot listen on {ADDRESS}:{port} in the sandbox: {why}")
        except BaseException:
            await run_to_completion(listener.close())
            raise
        listener.port = said.port
        return listener

    async def kill_all(self) -> None:
        said = await self._ask(Kind.KILL_ALL, seconds=_ANSWER_SECONDS)
        if said.error:
            self._channel.close(said.error)
            raise SandboxUnavailable(said.error)

    async def status(self) -> SandboxStatus:
        try:
            said = await self._ask(Kind.STATUS, seconds=_ANSWER_SECONDS)
        except SandboxUnavailable as error:
            return SandboxStatus(alive=False, reason=str(error), full_disk=self._full_disk)
        self._note_disk(said)
        return SandboxStatus(
            alive=True,
            processes=said.processes,
            oom_kills=said.oom_kills,
            full_disk=self._full_disk,
        )

    def look_at_disk(self) -> None:
        """Have init look at the disk. Nobody waits for it, and it is not given up if it is slow."""
        end = self._channel.request(Kind.STATUS).end
        end.add_done_callback(lambda end: end.exception() or self._note_disk(end.result()))

    def _note_disk(self, said: RequestEnd) -> None:
        """What a quota of its own leaves is not what the host's disk has left."""
        quota = (self._quota_mb or 0) * _QUOTA_SLACK * (1 << 20)
        if self._disk is not None and said.disk_size is not None and said.disk_size > quota:
            self._disk.note(
                DiskSpace(
                    said.disk_size,
                    said.disk_free,
                    said.disk_available,
                    said.disk_files,
                    as_root=bool(said.disk_as_root),
                )
            )

    def _naming_disk(self) -> AbstractContextManager[None]:
        """What has no room within a quota of the sandbox's own is told as it is."""
        if self._disk is None or self._quota_mb is not None:
            return nullcontext()
        return self._disk.named()

    @property
    def _full_disk(self) -> FullDisk | None:
        return None if self._disk is None else self._disk.full

    async def baseline(self) -> int:
        said = await self._ask(Kind.BASELINE)
        if said.error or said.entries is None:
            raise SandboxUnavailable(f"no manifest of the sandbox could be taken: {said.error}")
        return said.entries

    async def reset(self) -> str:
        served = list(self._listeners)
        for listener in served:
            await listener.close()
        said = await self._ask(Kind.RESET)
        if said.signal is not None:
            return "what was to put the file system back was killed"
        if served and self._network is not None:
            await self.set_network(self._network)  # the keeper may have served something for it
        return said.doubt or said.error

    async def _ask(self, kind: Kind, *fields: bytes, seconds: float = _WALK_SECONDS) -> RequestEnd:
        return await self._answer(self._channel.request(kind, fields).end, seconds)

    async def _answer(self, end: "asyncio.Future[RequestEnd]", seconds: float) -> RequestEnd:
        """What init says in time; a sandbox that does not answer is given up."""
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
            await self._keeper.remove()
        finally:
            for listener in list(self._listeners):
                await listener.close()
            self._on_close(self)
