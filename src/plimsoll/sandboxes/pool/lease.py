"""A lease: the use of a sandbox by one trial. Closing it returns the sandbox to the pool."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels
from plimsoll.core.permissions import NetworkPolicy
from plimsoll.sandboxes.pool.stock import PooledSandbox
from plimsoll.sandboxes.protocol import (
    KEEP_OUTPUT,
    ExecResult,
    OnConnection,
    OnOutput,
    Sandbox,
    SandboxSpec,
    SandboxStatus,
    ServedSocket,
    Transfer,
)

__all__ = ["Lease"]

_CLOSED = "the sandbox was closed"

_T = TypeVar("_T")


class Lease:
    """A leased sandbox, made by `Pool.create`. After `close` no call reaches the sandbox."""

    def __init__(
        self, pooled: PooledSandbox, spec: SandboxSpec, on_close: Callable[["Lease"], None]
    ) -> None:
        self.pooled = pooled
        self.network: NetworkPolicy | None = spec.network
        """The sandbox's current policy; None after a failed change."""
        self.served: list[ServedSocket] = []
        self._labels = spec.labels
        self._on_close = on_close
        self._calls = 0
        self._closed = False

    @property
    def id(self) -> str:
        return self.pooled.sandbox.id

    @property
    def labels(self) -> Labels:
        return self._labels

    @property
    def workdir(self) -> str:
        return self.pooled.sandbox.workdir

    @property
    def calls(self) -> int:
        """The number of calls in flight."""
        return self._calls

    @property
    def _open(self) -> Sandbox:
        if self._closed:
            raise SandboxUnavailable(_CLOSED)
        return self.pooled.sandbox

    async def _count_call(self, call: Awaitable[_T]) -> _T:
        self._calls += 1
        try:
            return await call
        finally:
            self._calls -= 1

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
        call = self._open.exec(
            command,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout=timeout,
            on_output=on_output,
            keep=keep,
        )
        return await self._count_call(call)

    async def upload(self, source: Path, target: str) -> Transfer:
        return await self._count_call(self._open.upload(source, target))

    async def download(
        self, source: str, target: Path, *, limit: int | None = None, entries: int | None = None
    ) -> Transfer:
        transfer = self._open.download(source, target, limit=limit, entries=entries)
        return await self._count_call(transfer)

    async def empty(self, path: str, *, mode: int = 0o755) -> None:
        await self._count_call(self._open.empty(path, mode=mode))

    async def set_network(self, policy: NetworkPolicy) -> None:
        sandbox, self.network = self._open, None
        await self._count_call(sandbox.set_network(policy))
        self.network = policy

    async def serve(self, port: int, on_connection: OnConnection) -> ServedSocket:
        served = await self._count_call(self._open.serve(port, on_connection))
        self.served.append(served)
        return served

    async def kill_all(self) -> None:
        await self._count_call(self._open.kill_all())

    async def status(self) -> SandboxStatus:
        """The status of the sandbox, without the OOM kills before the lease."""
        if self._closed:
            return SandboxStatus(alive=False, reason=_CLOSED)
        status = await self._count_call(self.pooled.sandbox.status())
        if status.oom_kills is None:
            return status
        return replace(status, oom_kills=status.oom_kills - self.pooled.oom_kills)

    async def close(self) -> None:
        """Return the sandbox to the pool, which resets or closes it."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
