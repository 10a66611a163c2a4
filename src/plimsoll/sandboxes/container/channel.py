"""Requests and tunnels over the one stream to a sandbox's init.

Invariants:

* A cancelled call never cuts a frame, because one task writes all frames.
* When the sandbox is gone, every waiter fails with the same reason.
* Buffered data is bounded by the callers' own data and by the windows of `frames`.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.container.frames import (
    FIRST_TUNNEL,
    MAX_DATA,
    MAX_REQUEST,
    WINDOW,
    Decoder,
    Frame,
    FrameError,
    Kind,
    RequestEnd,
    header,
    pack_fields,
    read_count,
    read_fields,
    read_request_end,
)

__all__ = ["Channel", "InitStream", "Request", "Sink", "TunnelEnd"]

log = logging.getLogger(__name__)

Sink = Callable[[Kind, bytes], "asyncio.Future[None] | None"]
"""Receives a request's output. If it returns a future, reading pauses until that is done."""

_NAME, _VERSION = b"plimsoll-init", b"1"
_REASON_SECONDS = 10.0
_CLOSE_SECONDS = 10.0
_CHECK_SECONDS = 15.0
_SILENCE_SECONDS = 30.0
_MAX_STDERR = 4096
_READS_PER_YIELD = 16
PROTOCOL_ERROR = "the sandbox's init violates the protocol"


class InitStream(Protocol):
    """The byte stream to an init, implemented by the backend. A lost stream may raise anything."""

    async def read(self) -> tuple[int, bytes] | None:
        """The next bytes of init's stdout (1) or stderr (2), split anywhere; None at the end."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class TunnelEnd(Protocol):
    """The host side of a connection made in the sandbox."""

    def received(self, chunk: bytes) -> None:
        """Bytes from the peer; an empty chunk is the end of its data."""
        ...

    def credited(self, count: int) -> None: ...

    def closed(self) -> None:
        """Init closed the tunnel."""
        ...

    def lost(self, why: str) -> None:
        """The sandbox is gone."""
        ...


class Request:
    """One request to init."""

    def __init__(self, channel: "Channel", number: int, sink: Sink | None) -> None:
        self.number = number
        self.end: asyncio.Future[RequestEnd] = asyncio.get_running_loop().create_future()
        self.sink = sink
        self._channel = channel
        self._credit = WINDOW
        self._credit_waiter: asyncio.Future[None] | None = None

    async def wait_credit(self) -> int:
        """Wait for credit. Returns the bytes that may be sent; 0 when the request has ended."""
        while not self._credit and not self.end.done():
            self._credit_waiter = asyncio.get_running_loop().create_future()
            await self._credit_waiter
        return 0 if self.end.done() else min(self._credit, MAX_DATA)

    def send(self, data: bytes | memoryview) -> None:
        """Send input within the credit. Empty data ends the input."""
        self._credit -= len(data)
        self._channel.send(Kind.DATA, self.number, data)

    def kill(self) -> None:
        """Have init kill all processes of the request; the request ends when they are gone."""
        self._channel.send(Kind.KILL, self.number)

    async def send_all(self, data: bytes) -> None:
        """Send all input as credit allows, then its end."""
        view = memoryview(data)
        while view:
            credit = await self.wait_credit()
            if not credit:
                return
            self.send(view[:credit])
            view = view[credit:]
        self.send(b"")

    def credited(self, count: int) -> None:
        self._credit += count
        if self._credit > WINDOW:
            raise FrameError("more credit than data sent")
        self._wake()

    def finish(self, end: RequestEnd) -> None:
        if not self.end.done():
            self.end.set_result(end)
        self._wake()

    def lost(self, why: str) -> None:
        if not self.end.done():
            self.end.set_exception(SandboxUnavailable(why))
            self.end.exception()  # marks it as retrieved: there may be no waiter
        self._wake()

    def _wake(self) -> None:
        if self._credit_waiter is not None and not self._credit_waiter.done():
            self._credit_waiter.set_result(None)


class Channel:
    """Owns the stream to init. `exit_reason` is called once, if the stream ends unexpectedly."""

    def __init__(self, stream: InitStream, exit_reason: Callable[[], Awaitable[str]]) -> None:
        self._stream = stream
        self._exit_reason = exit_reason
        self._loop = asyncio.get_running_loop()
        self._last_number = 0
        self._requests: dict[int, Request] = {}
        self._tunnels: dict[int, TunnelEnd] = {}
        self._listeners: dict[int, Callable[[int], None]] = {}
        self._outgoing: deque[bytes | memoryview] = deque()
        self._stderr = b""
        self._gone: str | None = None
        self._ending = False
        self._paused = False
        self._last_read = time.monotonic()
        self._probe_sent: float | None = None
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._writing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._reading = self._loop.create_task(self._read_all())
        self._silence_timer = self._loop.call_later(_CHECK_SECONDS, self._check_silence)

    @property
    def gone(self) -> str | None:
        """The reason why the sandbox is gone; None while it is alive."""
        return self._gone

    def request(
        self, kind: Kind, fields: Iterable[bytes] = (), sink: Sink | None = None
    ) -> Request:
        """Send a request. It does not block others; its end is a future."""
        if self._gone is not None:
            raise SandboxUnavailable(self._gone)
        payload = pack_fields(fields)
        if len(payload) > MAX_REQUEST:
            raise ValueError(f"a request of {len(payload):,} bytes is too large for a sandbox")
        self._last_number += 1
        request = Request(self, self._last_number, sink)
        self._requests[request.number] = request
        self.send(kind, request.number, payload)
        return request

    def send(self, kind: Kind, number: int, payload: bytes | memoryview = b"") -> None:
        """Queue a frame; it is dropped if the sandbox is gone."""
        if self._gone is not None or self._ending:
            return
        self._outgoing.append(header(kind, number, len(payload)))
        if payload:
            self._outgoing.append(payload)
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_all())

    def accept(self, listening: int, on_connect: Callable[[int], None]) -> None:
        """Receive the connections of a listening socket, given the number of its request.

        `on_connect` gets the number of each new tunnel, and opens or closes it.
        """
        self._listeners[listening] = on_connect

    def stop_accepting(self, listening: int) -> None:
        if self._listeners.pop(listening, None) is not None:
            self.send(Kind.HANG_UP, listening)

    def open_tunnel(self, number: int, end: TunnelEnd) -> None:
        """Pass the data of a tunnel to `end` from now on."""
        self._tunnels[number] = end

    def close_tunnel(self, number: int) -> None:
        """Close a tunnel; data that still arrives is dropped."""
        if self._tunnels.pop(number, None) is not None:
            self.send(Kind.HANG_UP, number)

    async def _write_all(self) -> None:
        try:
            while self._outgoing:
                data = b"".join(self._outgoing)
                self._outgoing.clear()
                await self._stream.write(data)
        except Exception as error:  # noqa: BLE001 - any exception means a lost stream
            await self._on_stream_end(error)
        finally:
            self._writing = None

    async def _read_all(self) -> None:
        decoder = Decoder()
        reads = 0
        try:
            while (piece := await self._stream.read()) is not None:
                stream, chunk = piece
                self._last_read, self._probe_sent = time.monotonic(), None
                if stream == 1:
                    await self._handle_chunk(decoder, chunk)
                else:
                    self._stderr = (self._stderr + chunk)[-_MAX_STDERR:]
                reads += 1
                if not reads % _READS_PER_YIELD:
                    await asyncio.sleep(0)  # reads that do not block would starve other tasks
        except FrameError:
            log.debug("protocol error of a sandbox's init", exc_info=True)
            self.close(PROTOCOL_ERROR)
        except Exception as error:  # noqa: BLE001 - any exception means a lost stream
            await self._on_stream_end(error)
        else:
            await self._on_stream_end(None)

    async def _handle_chunk(self, decoder: Decoder, chunk: bytes) -> None:
        for frame in decoder.feed(chunk):
            pause = self._handle_frame(frame)
            if pause is not None:
                self._paused = True
                await pause
                self._paused = False
                self._last_read, self._probe_sent = time.monotonic(), None

    def _handle_frame(self, frame: Frame) -> "asyncio.Future[None] | None":
        kind, number, payload = frame
        if kind in (Kind.OUT, Kind.ERR):
            if number >= FIRST_TUNNEL:
                if (tunnel := self._tunnels.get(number)) is not None:
                    tunnel.received(payload)
            elif (request := self._requests.get(number)) is not None and request.sink is not None:
                return request.sink(Kind(kind), payload)
        elif kind == Kind.END:
            end = read_request_end(payload)
            if (request := self._requests.pop(number, None)) is not None:
                request.finish(end)
        elif kind == Kind.CREDIT:
            receiver = self._requests.get(number) or self._tunnels.get(number)
            if receiver is not None:
                receiver.credited(read_count(payload))
        elif kind == Kind.CONNECT:
            self._on_connect(number, payload)
        elif kind == Kind.CLOSE:
            if (tunnel := self._tunnels.pop(number, None)) is not None:
                tunnel.closed()
        else:
            self._on_ready(payload)
        return None

    def _on_connect(self, number: int, payload: bytes) -> None:
        fields = read_fields(payload)
        if number < FIRST_TUNNEL or number in self._tunnels or len(fields) != 1:
            raise FrameError("an invalid connection")
        try:
            on_connect = self._listeners.get(int(fields[0]))
        except ValueError:
            raise FrameError("a connection to an invalid listener") from None
        if on_connect is None:  # the listener was closed meanwhile
            self.send(Kind.HANG_UP, number)
        else:
            on_connect(number)

    def _on_ready(self, payload: bytes) -> None:
        fields = read_fields(payload)
        if fields != [_NAME, _VERSION] or self.ready.done():
            raise FrameError("not the expected init")
        self.ready.set_result(None)

    def _check_silence(self) -> None:
        """Probe an init that is silent while requests are pending; close it if it stays silent."""
        now = time.monotonic()
        if self._probe_sent is not None and now - self._probe_sent >= _SILENCE_SECONDS:
            self.close(f"the sandbox has not answered for {now - self._probe_sent:.0f} s")
            return
        waiting = self._requests and not self._paused and not self._ending
        if waiting and self._probe_sent is None and now - self._last_read >= _SILENCE_SECONDS:
            self._probe_sent = now
            self.request(Kind.STATUS)
        self._silence_timer = self._loop.call_later(_CHECK_SECONDS, self._check_silence)

    async def _on_stream_end(self, error: Exception | None) -> None:
        if self._ending or self._gone is not None:
            return
        self._ending = True
        try:
            async with asyncio.timeout(_REASON_SECONDS):
                why = await self._exit_reason()
        except Exception:  # noqa: BLE001 - waiters must be released without a reason, too
            why = f"the sandbox is gone: {error or 'its init ended'}"
        stderr = self._stderr.decode("utf-8", "replace").strip()
        self.close(f"{why}; its init printed: {stderr}" if stderr else why)

    def close(self, why: str) -> None:
        """Close the stream, which ends the sandbox, and fail all pending requests."""
        if self._gone is not None:
            return
        self._gone = why
        self._silence_timer.cancel()
        for task in (self._reading, self._writing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._outgoing.clear()
        self._listeners.clear()
        if not self.ready.done():
            self.ready.set_exception(SandboxUnavailable(why))
            self.ready.exception()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.lost(why)
        tunnels, self._tunnels = self._tunnels, {}
        for tunnel in tunnels.values():
            tunnel.lost(why)
        self._closing = self._loop.create_task(self._close_stream())

    async def _close_stream(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._stream.close()
        except Exception as error:  # noqa: BLE001 - it is abandoned in any state
            log.debug("closing the stream of a sandbox: %s", error)

    async def wait_closed(self) -> None:
        """Wait until the stream is closed, after `close`."""
        assert self._closing is not None
        await self._closing
