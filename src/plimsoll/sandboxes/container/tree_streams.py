"""File trees between a pipe of a host thread and the frames of a request, with backpressure."""

import asyncio
import fcntl
import os

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import TransferError
from plimsoll.sandboxes.container.channel import Channel, Request
from plimsoll.sandboxes.container.commands import kill_request
from plimsoll.sandboxes.container.frames import Kind, RequestEnd
from plimsoll.sandboxes.protocol import Transfer
from plimsoll.sandboxes.transfers import (
    HostSide,
    SideResult,
    combine_sides,
    run_host_side,
)

__all__ = ["path_field", "stream_in", "stream_out"]

_PIPE_BYTES = 1 << 20


def path_field(path: str, what: str) -> bytes:
    """A path in the sandbox as a field of a request."""
    try:
        field = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise TransferError(f"{what}: {path!r} cannot be a path") from None
    if b"\0" in field or not field:
        raise TransferError(f"{what}: {path!r} cannot be a path")
    return field


async def stream_in(channel: Channel, target: str, host_side: HostSide, what: str) -> Transfer:
    """Pack a tree on the host with `host_side` and have init unpack it at `target`."""
    read_end, write_end = _pipe()
    os.set_blocking(read_end, False)
    try:
        request = channel.request(Kind.UNPACK, [path_field(target, what)])
    except BaseException:
        os.close(read_end)
        os.close(write_end)
        raise
    host_task = run_host_side(host_side, write_end)
    feed_task = asyncio.create_task(_feed(request, read_end))

    async def clean_up() -> None:
        if not request.end.done():
            await kill_request(channel, request)
        feed_task.cancel()
        await asyncio.wait([feed_task])
        os.close(read_end)  # a thread that is still packing gets a broken pipe
        await asyncio.wait([host_task])

    try:
        await asyncio.wait([request.end])
    finally:
        await run_to_completion(clean_up())
    return combine_sides(what, _init_result(request.end.result()), host_task.result())


async def _feed(request: Request, descriptor: int) -> None:
    """Send the output of a pipe as credit allows."""
    while credit := await request.wait_credit():
        try:
            data = os.read(descriptor, credit)
        except BlockingIOError:
            await _readable(descriptor)
            continue
        request.send(data)
        if not data:
            return


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def stream_out(channel: Channel, source: str, host_side: HostSide, what: str) -> Transfer:
    """Have init pack `source` and unpack it on the host with `host_side`."""
    field = path_field(source, what)
    read_end, write_end = _pipe()
    writer = _PipeWriter(write_end)
    try:
        request = writer.request = channel.request(Kind.PACK, [field], writer.write)
    except BaseException:
        os.close(read_end)
        writer.close()
        raise
    host_task = run_host_side(host_side, read_end)

    async def clean_up() -> None:
        if not request.end.done():
            writer.close()
            await kill_request(channel, request)
        writer.close()
        await asyncio.wait([host_task])

    try:
        await asyncio.wait([request.end])
    finally:
        await run_to_completion(clean_up())
    result = request.end.result()
    init_result = SideResult(error="Broken pipe") if writer.broken else _init_result(result)
    return combine_sides(what, init_result, host_task.result())


class _PipeWriter:
    """Writes a request's output into a pipe; a full pipe pauses the channel."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._unwritten = memoryview(b"")
        self._paused: asyncio.Future[None] | None = None
        self.request: Request | None = None
        self.broken = False
        """The reading side closed first."""

    def write(self, kind: Kind, chunk: bytes) -> "asyncio.Future[None] | None":
        if kind is not Kind.OUT or self._descriptor is None:
            return None
        self._unwritten = memoryview(chunk)
        self._write()
        if not self._unwritten:
            return None
        self._paused = self._loop.create_future()
        self._loop.add_writer(self._descriptor, self._write_more)
        return self._paused

    def _write_more(self) -> None:
        self._write()
        if not self._unwritten:
            self._release()

    def _write(self) -> None:
        assert self._descriptor is not None
        try:
            self._unwritten = self._unwritten[os.write(self._descriptor, self._unwritten) :]
        except BlockingIOError:
            return
        except OSError:
            self.broken = True
            self.close()
            if self.request is not None:
                self.request.kill()

    def _release(self) -> None:
        if self._paused is not None and self._descriptor is not None:
            self._loop.remove_writer(self._descriptor)
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)
        self._paused = None

    def close(self) -> None:
        """Close the pipe; further output is dropped."""
        if self._descriptor is not None:
            self._release()
            self._unwritten = memoryview(b"")
            os.close(self._descriptor)
            self._descriptor = None


def _pipe() -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    try:
        fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        return ends  # the user's pipe memory is used up: a small pipe works too
    return ends


def _init_result(end: RequestEnd) -> SideResult:
    error = end.error or ("it was killed" if end.signal is not None else "")
    return SideResult(error, end.files, end.bytes, end.skipped)
