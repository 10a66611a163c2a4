"""Requests and tunnels over the one stream to a sandbox's init.

Invariants: no frame is ever cut by a cancelled call, since one task writes them all; whoever
waits is told when the sandbox is gone, with one and the same reason; what is held is bounded
by what callers handed in and by the windows of `frames`.
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
    LARGEST_DATA,
    LARGEST_REQUEST,
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
"""Takes a request's output. Where it returns a future, nothing is read until that is done."""

_NAME, _VERSION = b"plimsoll-init", b"1"
_EXPLAIN_SECONDS = 10.0
_CLOSE_SECONDS = 10.0
_TICK_SECONDS = 15.0
_SILENCE_SECONDS = 30.0
_MAX_STDERR = 4096
_READS_IN_A_ROW = 16
_PROTOCOL_ERROR = "the sandbox's init does not make sense"


class InitStream(Protocol):
    """The stream to an init, as its backend has it. It may raise anything when it is lost."""

    async def read(self) -> tuple[int, bytes] | None:
        """The next bytes, cut anywhere: of init's stdout (1) or stderr (2). None at the end."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


class TunnelEnd(Protocol):
    """This side of a connection that was made in the sandbox."""

    def took(self, piece: bytes) -> None:
        """Bytes came from the peer; none of them means that it sends no more."""
        ...

    def credited(self, count: int) -> None: ...

    def closed(self) -> None:
        """Init is done with it."""
        ...

    def lost(self, why: str) -> None:
        """The sandbox is gone."""
        ...


class Request:
    """One request to init, until its end."""

    def __init__(self, channel: "Channel", number: int, sink: Sink | None) -> None:
        self.number = number
        self.end: asyncio.Future[RequestEnd] = asyncio.get_running_loop().create_future()
        self.sink = sink
        self._channel = channel
        self._room = WINDOW
        self._wanting: asyncio.Future[None] | None = None

    async def room(self) -> int:
        """How much input may be sent, once there is any; 0 when the request has ended."""
        while not self._room and not self.end.done():
            self._wanting = asyncio.get_running_loop().create_future()
            await self._wanting
        return 0 if self.end.done() else min(self._room, LARGEST_DATA)

    def send(self, data: bytes | memoryview) -> None:
        """Send input that there is room for. Empty data is its end."""
        self._room -= len(data)
        self._channel.send(Kind.DATA, self.number, data)

    def kill(self) -> None:
        """Have init kill what the request started; its end tells when that is done."""
        self._channel.send(Kind.KILL, self.number)

    async def pour(self, data: bytes) -> None:
        """Send all input as room for it comes, and then its end."""
        view = memoryview(data)
        while view:
            room = await self.room()
            if not room:
                return
            self.send(view[:room])
            view = view[room:]
        self.send(b"")

    def credited(self, count: int) -> None:
        self._room += count
        if self._room > WINDOW:
            raise FrameError("more was consumed than was sent")
        self._wake()

    def finish(self, said: RequestEnd) -> None:
        if not self.end.done():
            self.end.set_result(said)
        self._wake()

    def lost(self, why: str) -> None:
        if not self.end.done():
            self.end.set_exception(SandboxUnavailable(why))
            self.end.exception()  # it may be that nobody waits any more
        self._wake()

    def _wake(self) -> None:
        if self._wanting is not None and not self._wanting.done():
            self._wanting.set_result(None)


class Channel:
    """Owns a wire. `why_gone` is asked once, when the wire ended without our doing."""

    def __init__(self, wire: InitStream, why_gone: Callable[[], Awaitable[str]]) -> None:
        self._wire = wire
        self._why_gone = why_gone
        self._loop = asyncio.get_running_loop()
        self._last_number = 0
        self._requests: dict[int, Request] = {}
        self._tunnels: dict[int, TunnelEnd] = {}
        self._listeners: dict[int, Callable[[int], TunnelEnd]] = {}
        self._outgoing: deque[bytes | memoryview] = deque()
        self._last_words = b""
        self._gone: str | None = None
        self._ending = False
        self._held_up = False
        self._heard = time.monotonic()
        self._probed: float | None = None
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._writing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._reading = self._loop.create_task(self._read_all())
        self._watch = self._loop.call_later(_TICK_SECONDS, self._check_silence)

    @property
    def gone(self) -> str | None:
        """Why the sandbox is gone, or None while it is there."""
        return self._gone

    def request(
        self, kind: Kind, fields: Iterable[bytes] = (), sink: Sink | None = None
    ) -> Request:
        """Send a request. It stands in the way of nobody: its end is a future."""
        if self._gone is not None:
            raise SandboxUnavailable(self._gone)
        payload = pack_fields(fields)
        if len(payload) > LARGEST_REQUEST:
            raise ValueError(f"a request of {len(payload):,} bytes is too large for a sandbox")
        self._last_number += 1
        request = Request(self, self._last_number, sink)
        self._requests[request.number] = request
        self.send(kind, request.number, payload)
        return request

    def send(self, kind: Kind, number: int, payload: bytes | memoryview = b"") -> None:
        """Queue a frame. To a sandbox that is gone it is dropped."""
        if self._gone is not None or self._ending:
            return
        self._outgoing.append(header(kind, number, len(payload)))
        if payload:
            self._outgoing.append(payload)
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_all())

    def accept(self, listening: int, accept: Callable[[int], TunnelEnd]) -> None:
        """Have the connections of a listening socket, by its request's number."""
        self._listeners[listening] = accept

    def accept_no_more(self, listening: int) -> None:
        if self._listeners.pop(listening, None) is not None:
            self.send(Kind.HANG_UP, listening)

    def hang_up(self, tunnel: int) -> None:
        """Be done with a tunnel; what still comes of it is dropped."""
        if self._tunnels.pop(tunnel, None) is not None:
            self.send(Kind.HANG_UP, tunnel)

    async def _write_all(self) -> None:
        try:
            while self._outgoing:
                data = b"".join(self._outgoing)
                self._outgoing.clear()
                await self._wire.write(data)
        except Exception as error:  # noqa: BLE001 - whatever a wire raises, it is lost
            await self._ended_by_itself(error)
        finally:
            self._writing = None

    async def _read_all(self) -> None:
        decoder = Decoder()
        reads = 0
        try:
            while (piece := await self._wire.read()) is not None:
                stream, chunk = piece
                self._heard, self._probed = time.monotonic(), None
                if stream == 1:
                    await self._take_all(decoder, chunk)
                else:
                    self._last_words = (self._last_words + chunk)[-_MAX_STDERR:]
                reads += 1
                if not reads % _READS_IN_A_ROW:
                    await asyncio.sleep(0)  # a wire with bytes at hand lets nobody else run
        except FrameError:
            log.debug("nonsense from a sandbox's init", exc_info=True)
            self.close(_PROTOCOL_ERROR)
        except Exception as error:  # noqa: BLE001 - whatever a wire raises, it is lost
            await self._ended_by_itself(error)
        else:
            await self._ended_by_itself(None)

    async def _take_all(self, decoder: Decoder, chunk: bytes) -> None:
        for frame in decoder.feed(chunk):
            held_up = self._take(frame)
            if held_up is not None:
                self._held_up = True
                await held_up
                self._held_up = False
                self._heard, self._probed = time.monotonic(), None

    def _take(self, frame: Frame) -> "asyncio.Future[None] | None":
        kind, number, payload = frame
        if kind in (Kind.OUT, Kind.ERR):
            if number >= FIRST_TUNNEL:
                if (tunnel := self._tunnels.get(number)) is not None:
                    tunnel.took(payload)
            elif (request := self._requests.get(number)) is not None and request.sink is not None:
                return request.sink(Kind(kind), payload)
        elif kind == Kind.END:
            said = read_request_end(payload)
            if (request := self._requests.pop(number, None)) is not None:
                request.finish(said)
        elif kind == Kind.CREDIT:
            party = self._requests.get(number) or self._tunnels.get(number)
            if party is not None:
                party.credited(read_count(payload))
        elif kind == Kind.CONNECT:
            self._connected(number, payload)
        elif kind == Kind.CLOSE:
            if (tunnel := self._tunnels.pop(number, None)) is not None:
                tunnel.closed()
        else:
            self._is_ready(payload)
        return None

    def _connected(self, number: int, payload: bytes) -> None:
        fields = read_fields(payload)
        if number < FIRST_TUNNEL or number in self._tunnels or len(fields) != 1:
            raise FrameError("a connection that cannot be")
        try:
            accept = self._listeners.get(int(fields[0]))
        except ValueError:
            raise FrameError("a connection to nothing") from None
        if accept is None:  # it was closed while the connection was on its way
            self.send(Kind.HANG_UP, number)
        else:
            self._tunnels[number] = accept(number)

    def _is_ready(self, payload: bytes) -> None:
        fields = read_fields(payload)
        if fields != [_NAME, _VERSION] or self.ready.done():
            raise FrameError("not the init that was expected")
        self.ready.set_result(None)

    def _check_silence(self) -> None:
        """While somebody waits, an init from which nothing comes is asked for a sign of life."""
        now = time.monotonic()
        if self._probed is not None and now - self._probed >= _SILENCE_SECONDS:
            self.close(f"the sandbox has not answered for {now - self._probed:.0f} s")
            return
        waiting = self._requests and not self._held_up and not self._ending
        if waiting and self._probed is None and now - self._heard >= _SILENCE_SECONDS:
            self._probed = now
            self.request(Kind.STATUS)
        self._watch = self._loop.call_later(_TICK_SECONDS, self._check_silence)

    async def _ended_by_itself(self, error: Exception | None) -> None:
        if self._ending or self._gone is not None:
            return
        self._ending = True
        try:
            async with asyncio.timeout(_EXPLAIN_SECONDS):
                why = await self._why_gone()
        except Exception:  # noqa: BLE001 - nobody may wait for ever because nobody knows why
            why = f"the sandbox is gone: {error or 'its init ended'}"
        words = self._last_words.decode("utf-8", "replace").strip()
        self.close(f"{why}; its init said: {words}" if words else why)

    def close(self, why: str) -> None:
        """Close the wire, which ends the sandbox, and tell everyone who waits."""
        if self._gone is not None:
            return
        self._gone = why
        self._watch.cancel()
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
        self._closing = self._loop.create_task(self._close_wire())

    async def _close_wire(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._wire.close()
        except Exception as error:  # noqa: BLE001 - it is given up, in whatever state it is
            log.debug("closing the wire to a sandbox: %s", error)

    async def wait_closed(self) -> None:
        """Wait until the wire is closed; `close` was called."""
        assert self._closing is not None
        await self._closing
