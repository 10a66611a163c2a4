import asyncio
import os
import platform
import shutil
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import IO

import pytest

from init_client import fields
from parts import need, spec
from plimsoll.core.permissions import NetworkPolicy
from plimsoll.sandboxes.container.frames import Kind
from plimsoll.sandboxes.container.init_binary import init_binary
from plimsoll.sandboxes.container.sandbox import ContainerSandbox
from plimsoll.sandboxes.host.disk_space import Disk

HEADER = struct.Struct("<IBI")


class FakeInit:
    """A stream whose other end is the test, which sends valid or invalid frames of an init."""

    def __init__(self) -> None:
        self._to_host: asyncio.Queue[tuple[int, bytes] | Exception | None] = asyncio.Queue()
        self._frames: asyncio.Queue[tuple[int, int, bytes]] = asyncio.Queue()
        self._bytes = bytearray()
        self.closed = False
        self.stuck = asyncio.Event()
        """While cleared, writes to the stream block."""
        self.stuck.set()

    async def read(self) -> tuple[int, bytes] | None:
        said = await self._to_host.get()
        if isinstance(said, Exception):
            raise said
        return said

    async def write(self, data: bytes) -> None:
        await self.stuck.wait()
        if self.closed:
            raise ConnectionResetError("the stream is closed")
        self._bytes += data
        while len(self._bytes) >= HEADER.size:
            length, kind, number = HEADER.unpack_from(self._bytes)
            if len(self._bytes) < HEADER.size + length:
                return
            payload = bytes(self._bytes[HEADER.size : HEADER.size + length])
            del self._bytes[: HEADER.size + length]
            self._frames.put_nowait((kind, number, payload))

    async def close(self) -> None:
        self.closed = True

    async def next(self, kind: Kind | None = None) -> tuple[int, int, bytes]:
        """The host's next frame; with a kind, frames of other kinds are skipped."""
        while True:
            async with asyncio.timeout(30):
                frame = await self._frames.get()
            if kind is None or frame[0] == kind:
                return frame

    def received_nothing(self) -> bool:
        return self._frames.empty()

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self.send_raw(HEADER.pack(len(payload), kind, number) + payload)

    def send_raw(self, data: bytes) -> None:
        self._to_host.put_nowait((1, data))

    def end(self, number: int, **words: object) -> None:
        pairs = [text for key, value in words.items() for text in (key, str(value))]
        self.send(Kind.END, number, fields(*pairs))

    def complain(self, words: bytes) -> None:
        self._to_host.put_nowait((2, words))

    def end_stream(self, error: Exception | None = None) -> None:
        self._to_host.put_nowait(error)


class RecordingHandle:
    """A container handle that only records calls."""

    def __init__(self, why: str = "it fell over") -> None:
        self.id = "recorded"
        self.why = why
        self.asked = 0
        self.removed = 0
        self.removing = asyncio.Event()
        self.removing.set()
        self.network: list[NetworkPolicy] = []
        self.env: Mapping[str, str] = {}

    async def exit_reason(self) -> str:
        self.asked += 1
        return self.why

    async def set_network(self, policy: NetworkPolicy) -> Mapping[str, str]:
        self.network.append(policy)
        return self.env

    async def remove(self) -> None:
        await self.removing.wait()
        self.removed += 1


class ProcessStream:
    """The real init as pid 1 of a new namespace, in the file system of this host."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: IO[bytes]) -> None:
        self.process = process
        self._stderr = stderr
        self._said_last = False

    @classmethod
    async def start(cls) -> "ProcessStream":
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the stream
        process = await asyncio.create_subprocess_exec(
            "unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc",
            str(init_binary(platform.machine()).path),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr,
            limit=1 << 20,
        )  # fmt: skip
        return cls(process, stderr)

    async def read(self) -> tuple[int, bytes] | None:
        assert self.process.stdout is not None
        if data := await self.process.stdout.read(1 << 18):
            return 1, data
        if not self._said_last:
            self._said_last = True
            self._stderr.seek(0)
            return 2, self._stderr.read()
        return None

    async def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    async def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()
        self._stderr.close()


Fake = tuple[FakeInit, RecordingHandle, ContainerSandbox]
StartFake = Callable[..., Awaitable[Fake]]


@pytest.fixture
async def start_fake() -> AsyncIterator[StartFake]:
    """Starts sandboxes whose init is simulated by the test."""
    made: list[ContainerSandbox] = []

    async def start(disk: Disk | None = None, quota_mb: int | None = None) -> Fake:
        init, handle = FakeInit(), RecordingHandle()
        init.send(Kind.READY, 0, fields("plimsoll-init", "1"))
        sandbox = await ContainerSandbox.start(
            init, spec(), handle=handle, env={"A": "1"}, workdir="/w", user="",
            on_close=lambda _: None, disk=disk, quota_mb=quota_mb,
        )  # fmt: skip
        made.append(sandbox)
        return init, handle, sandbox

    yield start
    for sandbox in made:
        await sandbox.close()


@pytest.fixture
async def real() -> AsyncIterator[ContainerSandbox]:
    """A sandbox with the real init, without a container."""
    need("root", None if os.geteuid() == 0 else "a namespace for init needs root")
    need("unshare", None if shutil.which("unshare") else "util-linux is not installed")
    stream, handle = await ProcessStream.start(), RecordingHandle()
    handle.id = str(stream.process.pid)
    sandbox = await ContainerSandbox.start(
        stream, spec(), handle=handle, env={"PATH": os.environ["PATH"]}, workdir="/", user="root",
        on_close=lambda _: None,
    )  # fmt: skip
    yield sandbox
    await sandbox.close()
