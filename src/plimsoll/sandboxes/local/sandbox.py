"""A sandbox of the local backend, controlled from the host."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import (
    SandboxError,
    SandboxUnavailable,
    SandboxUnsupported,
)
from plimsoll.core.ids import Labels
from plimsoll.core.permissions import NetworkMode, NetworkPolicy
from plimsoll.sandboxes import trees
from plimsoll.sandboxes.host.disk_space import FolderDisk, OpenDisk
from plimsoll.sandboxes.local.channel import Channel
from plimsoll.sandboxes.local.host.resources import HostResources
from plimsoll.sandboxes.local.inside.listener import ADDRESS
from plimsoll.sandboxes.local.streams import LocalServedSocket, OutputReader, close_unclaimed_socket
from plimsoll.sandboxes.protocol import (
    KEEP_OUTPUT,
    ExecResult,
    OnConnection,
    OnOutput,
    SandboxSpec,
    SandboxStatus,
    Transfer,
)
from plimsoll.sandboxes.transfers import (
    HostSide,
    SideResult,
    combine_sides,
    pack_from_host,
    remove_on_failure,
    run_host_side,
    transfer_error,
    unpack_to_host,
)

__all__ = ["LocalSandbox", "allows_network"]

_KILL_SECONDS = 15.0
_ANSWER_SECONDS = 20.0
_EMPTY_SECONDS = 120.0


def allows_network(policy: NetworkPolicy) -> bool:
    """Whether a policy allows the host's network. Raises `SandboxUnsupported` for an allowlist."""
    if policy.mode is NetworkMode.ALLOWLIST:
        raise SandboxUnsupported(
            'the local backend cannot enforce network_mode = "allowlist"; '
            'use --backend docker, or "no-network"'
        )
    return policy.mode is NetworkMode.PUBLIC


class LocalSandbox:
    """Created by `LocalBackend.create`. Each wait has a time limit, its own or the caller's."""

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        channel: Channel,
        resources: HostResources,
        disk: FolderDisk | OpenDisk,
        env: Mapping[str, str],
        workdir: str,
        user: str,
        on_close: Callable[["LocalSandbox"], None],
    ) -> None:
        self._labels = spec.labels
        self._network = allows_network(spec.network)
        self._channel = channel
        self._resources = resources
        self._disk = disk
        self._env = dict(env)
        self._supplies = spec.supplies
        self._workdir = workdir
        self._user = user
        self._on_close = on_close
        self._readers: set[OutputReader] = set()
        self._served: set[LocalServedSocket] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._resources.id

    @property
    def labels(self) -> Labels:
        return self._labels

    @property
    def in_memory(self) -> bool:
        """Whether its files are kept in memory."""
        return isinstance(self._disk, OpenDisk)

    def check_disk(self) -> None:
        self._disk.check()

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
        shell = isinstance(command, str)
        if not command:
            raise ValueError("the command is empty")
        request = {
            "argv": [command] if isinstance(command, str) else list(command),
            "shell": shell,
            "cwd": cwd or self._workdir,
            "env": self._supplies.path_over({**self._env, **(env or {})}),
            "user": user or self._user,
            "network": self._network,
            # Without it, the sandbox's own /dev/null: the host's could be changed by chmod.
            "stdin": bool(stdin),
        }
        started = time.monotonic()
        fds: list[int] = []
        with contextlib.ExitStack() as sent:  # the descriptors are the sandbox's alone
            try:
                if stdin:
                    fds.append(_as_file(stdin))
                    sent.callback(os.close, fds[-1])
                out = OutputReader("stdout", keep, on_output)
                sent.callback(out.close_write_end)
                err = OutputReader("stderr", keep, on_output)
                sent.callback(err.close_write_end)
            except OSError as error:
                raise SandboxUnavailable(
                    f"a command could not be started: {error.strerror}"
                ) from None
            self._readers = {reader for reader in self._readers if reader.open} | {out, err}
            fds += (out.write_end, err.write_end)
            number, reply = await self._channel.send("exec", fds, **request)
        try:
            reply_fields, timed_out = await self._wait_for_end(number, reply, timeout)
        finally:
            captured = out.finish(), err.finish()
        if "error" in reply_fields:
            raise SandboxUnsupported(str(reply_fields["error"]))
        return ExecResult(
            exit_code=reply_fields.get("exit"),
            signal=reply_fields.get("signal"),
            timed_out=timed_out,
            stdout=captured[0],
            stderr=captured[1],
            seconds=time.monotonic() - started,
        )

    async def _wait_for_end(
        self, number: int, reply: "asyncio.Future[dict[str, Any]]", timeout: float | None
    ) -> tuple[dict[str, Any], bool]:
        """The reply for a command, and whether it was killed by the timeout."""
        try:
            done, _ = await asyncio.wait([reply], timeout=timeout)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxUnavailable):
                await run_to_completion(self._kill(number, reply))
            raise
        if done:
            return reply.result(), False
        return await run_to_completion(self._kill(number, reply)), True

    async def _kill(self, number: int, reply: "asyncio.Future[dict[str, Any]]") -> dict[str, Any]:
        """Kill the processes of a request, and wait for its reply."""
        _, ignored = await self._channel.send("kill", target=number)
        ignored.cancel()
        done, _ = await asyncio.wait([reply], timeout=_KILL_SECONDS)
        if not done:
            self._channel.close("a command in the sandbox cannot be killed")
        return reply.result()

    async def upload(self, source: Path, target: str) -> Transfer:
        return await self.put(source, target)

    async def put(
        self,
        source: Path,
        target: str,
        *,
        ignored: Callable[[str], bool] | None = None,
        as_image: bool = False,
        keep_owners: bool = False,
        owner: str | None = None,
        mode: int | None = None,
    ) -> Transfer:
        """Upload like a COPY instruction: links stay as they are, owner and mode can be set."""
        what = f"upload of {source} to {target}"
        rules = {
            "as_image": as_image,
            "keep_owners": keep_owners,
            "owner": owner,
            "mode": mode,
        }
        with self._disk.named():
            return await self._transfer(
                "unpack", target, pack_from_host(source, ignored), what, rules
            )

    async def download(
        self, source: str, target: Path, *, limit: int | None = None, entries: int | None = None
    ) -> Transfer:
        return await self.get(source, target, trees.Rules(limit=limit, entries=entries))

    async def get(
        self, source: str, target: Path, rules: trees.Rules, *, follow: bool = False
    ) -> Transfer:
        """Download with the given rules. A partial result is removed on failure."""
        host_side, what = unpack_to_host(target, rules), f"download of {source}"
        async with remove_on_failure(target):
            return await self._transfer("pack", source, host_side, what, {"follow": follow})

    async def _transfer(
        self,
        op: str,
        path: str,
        host_side: HostSide,
        what: str,
        rules: Mapping[str, object],
    ) -> Transfer:
        """Run both ends of a pipe: one in the sandbox, one in a thread of this process."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        host_end, sandbox_end = (write_end, read_end) if op == "unpack" else (read_end, write_end)
        try:
            number, reply = await self._channel.send(op, [sandbox_end], path=path, **rules)
        except BaseException:
            os.close(host_end)
            raise
        finally:
            os.close(sandbox_end)
        host = run_host_side(host_side, host_end)
        try:
            await asyncio.wait([host, reply])
        except asyncio.CancelledError:
            # When the sandbox's side is dead, the pipe breaks and the thread ends.
            with contextlib.suppress(SandboxUnavailable):
                await run_to_completion(self._kill(number, reply))
            await run_to_completion(host)
            raise
        return combine_sides(what, SideResult.of(reply.result()), host.result())

    async def empty(self, path: str, *, mode: int = 0o755) -> None:
        answer = await self._ask("empty", _EMPTY_SECONDS, path=path, mode=mode)
        if not answer.get("done"):
            with self._disk.named():
                raise transfer_error(
                    f"{path} could not be emptied: {answer.get('error', 'killed')}"
                )

    async def set_network(self, policy: NetworkPolicy) -> None:
        allowed = allows_network(policy)
        if self._channel.gone is not None:
            raise SandboxUnavailable(self._channel.gone)
        self._network = allowed

    async def serve(self, port: int, on_connection: OnConnection) -> LocalServedSocket:
        """Listen in the network of the current policy; without one, on the sandbox's loopback."""
        fields = {"port": port, "network": self._network}
        _, reply = await self._channel.send("listen", (), **fields)
        try:
            answer = await self._answer(reply, _ANSWER_SECONDS)
        except asyncio.CancelledError:
            reply.add_done_callback(close_unclaimed_socket)
            raise
        if "fd" not in answer:
            why = answer.get("error", "killed")
            raise SandboxError(f"cannot listen on {ADDRESS}:{port} in the sandbox: {why}")
        served = await LocalServedSocket.start(int(answer["fd"]), on_connection)
        self._served.add(served)
        return served

    async def kill_all(self) -> None:
        answer = await self._ask("kill_all", _ANSWER_SECONDS)
        if "error" in answer:
            self._channel.close(str(answer["error"]))
            raise SandboxUnavailable(str(answer["error"]))

    async def status(self) -> SandboxStatus:
        status = SandboxStatus(
            alive=True, oom_kills=self._resources.oom_kills(), full_disk=self._disk.check()
        )
        try:
            answer = await self._ask("count", _ANSWER_SECONDS)
        except SandboxUnavailable as error:
            return replace(status, alive=False, reason=str(error))
        return replace(status, processes=answer.get("count"))

    async def _ask(self, op: str, seconds: float, **fields: object) -> dict[str, Any]:
        """Send a request that init answers soon. A sandbox that does not answer is closed."""
        _, reply = await self._channel.send(op, (), **fields)
        return await self._answer(reply, seconds)

    async def _answer(
        self, reply: "asyncio.Future[dict[str, Any]]", seconds: float
    ) -> dict[str, Any]:
        done, _ = await asyncio.wait([reply], timeout=seconds)
        if not done:
            self._channel.close(f"the sandbox did not answer within {seconds:g} s")
        return reply.result()

    def keep_as(self, layer: Path) -> None:
        """Move the files written in the sandbox to this folder when it is closed."""
        self._resources.keep("up", layer)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._channel.close("the sandbox was closed")
        try:
            await self._resources.release()
        finally:
            if isinstance(self._disk, OpenDisk):
                self._disk.close()
            for reader in self._readers:
                reader.close()
            self._readers.clear()
            for served in self._served:
                await served.close()
            self._on_close(self)


def _as_file(data: bytes) -> int:
    """A descriptor from which `data` can be read."""
    descriptor = os.memfd_create("plimsoll-stdin", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
