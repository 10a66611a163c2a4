"""Trees between a thread's pipe and the frames of a request, neither side running ahead."""

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
    """A path in the sandbox as init wants it."""
    try:
        field = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise TransferError(f"{what}: {path!r} cannot be a path") from None
    if b"\0" in field or not field:
        raise TransferError(f"{what}: {path!r} cannot be a path")
    return field


async def stream_in(channel: Channel, target: str, here: HostSide, what: str) -> Transfer:
    """Have init unpack at `target` what `here` packs."""
    read_end, write_end = _pipe()
    os.set_blocking(read_end, False)
    try:
        request = channel.request(Kind.UNPACK, [path_field(target, what)])
    except BaseException:
        os.close(read_end)
        os.close(write_end)
        raise
    mine = run_host_side(here, write_end)
    feeding = asyncio.create_task(_feed(request, read_end))

    async def wind_up() -> None:
        if not request.end.done():
            await kill_request(channel, request)
        feeding.cancel()
        await asyncio.wait([feeding])
        os.close(read_end)  # where the thread still packs, its pipe breaks
        await asyncio.wait([mine])

    try:
        await asyncio.wait([request.end])
    finally:
        await run_to_completion(wind_up())
    return combine_sides(what, _side(request.end.result()), mine.result())


async def _feed(request: Request, descriptor: int) -> None:
    """Send what comes out of a pipe, as there is room for it."""
    while room := await request.room():
        try:
            data = os.read(descriptor, room)
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


async def stream_out(channel: Channel, source: str, here: HostSide, what: str) -> Transfer:
    """Have `here` unpack what init packs at `source`."""
    field = path_field(source, what)
    read_end, write_end = _pipe()
    drain = _Drain(write_end)
    try:
        request = drain.request = channel.request(Kind.PACK, [field], drain.take)
    except BaseException:
        os.close(read_end)
        drain.close()
        raise
    mine = run_host_side(here, read_end)

    async def wind_up() -> None:
        if not request.end.done():
            drain.close()
            await kill_request(channel, request)
        drain.close()
        await asyncio.wait([mine])

    try:
        await asyncio.wait([request.end])
    finally:
        await run_to_completion(wind_up())
    said = request.end.result()
    theirs = SideResult(error="Broken pipe") if drain.broken else _side(said)
    return combine_sides(what, theirs, mine.result())


class _Drain:
    """Writes a request's output into a pipe; while the pipe is full, nothing more is read."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._left = memoryview(b"")
        self._full: asyncio.Future[None] | None = None
        self.request: Request | None = None
        self.broken = False
        """The reading side went away first."""

    def take(self, kind: Kind, piece: bytes) -> "asyncio.Future[None] | None":
        if kind is not Kind.OUT or self._descriptor is None:
            return None
        self._left = memoryview(piece)
        self._write()
        if not self._left:
            return None
        self._full = self._loop.create_future()
        self._loop.add_writer(self._descriptor, self._write_more)
        return self._full

    def _write_more(self) -> None:
        self._write()
        if not self._left:
            self._let_go()

    def _write(self) -> None:
        assert self._descriptor is not None
        try:
            self._left = self._left[os.write(self._descriptor, self._left) :]
        except BlockingIOError:
            return
        except OSError:
            self.broken = True
            self.close()
            if self.request is not None:
                self.request.kill()

    def _let_go(self) -> None:
        if self._full is not None and self._descriptor is not None:
            self._loop.remove_writer(self._descriptor)
        if self._full is not None and not self._full.done():
            self._full.set_result(None)
        self._full = None

    def close(self) -> None:
        """Close the pipe; what still comes is dropped."""
        if self._descriptor is not None:
            self._let_go()
            self._left = memoryview(b"")
            os.close(self._descriptor)
            self._descriptor = None


def _pipe() -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    try:
        fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        return ends  # the user's share of pipe memory is used up: a small one does too
    return ends


def _side(said: RequestEnd) -> SideResult:
    error = said.error or ("it was killed" if said.signal is not None else "")
    return SideResult(error, said.files, said.bytes, said.skipped)
