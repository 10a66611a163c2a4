"""Connections made inside a sandbox, served in this process over the stream to its init."""

import asyncio
from collections.abc import Callable

from plimsoll.sandboxes.connections import Connections
from plimsoll.sandboxes.container.channel import Channel
from plimsoll.sandboxes.container.frames import (
    LARGEST_DATA,
    WINDOW,
    FrameError,
    Kind,
    pack_count,
)
from plimsoll.sandboxes.protocol import OnConnection

__all__ = ["Listener", "Tunnel"]

_GRANT = WINDOW // 4
_HIGH_WATER = 65_536
ADDRESS = "127.0.0.1"


class Tunnel(asyncio.Transport):
    """A connection as asyncio's streams want it.

    Credit goes back to init as the protocol takes the bytes, so a peer that sends faster than
    its handler reads is held up in the sandbox. Closing waits until the peer's socket has
    taken what was written, as a socket's own buffer would.
    """

    def __init__(self, channel: Channel, number: int, port: int) -> None:
        super().__init__({"peername": (ADDRESS, 0), "sockname": (ADDRESS, port)})
        self._channel = channel
        self._number = number
        self._protocol: asyncio.Protocol | None = None
        self._loop = asyncio.get_running_loop()
        self._reading = True
        self._owed = 0
        self._peer_ended = False
        self._room = WINDOW
        self._unsent = bytearray()
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._full = False
        self._ended = False
        """We send no more; told to init when what was written has been sent."""
        self._end_sent = False
        self._closing = False
        self._over = False

    # Of the channel: what comes from init.

    def took(self, piece: bytes) -> None:
        if self._peer_ended:
            raise FrameError("bytes of a connection after its end")
        self._peer_ended = not piece
        if self._closing or self._protocol is None:
            self._consumed(len(piece))
        elif piece:
            self._protocol.data_received(piece)
            self._consumed(len(piece))
        elif not self._protocol.eof_received():
            self.close()

    def _consumed(self, count: int) -> None:
        self._owed += count
        if (self._reading or self._closing) and self._owed >= _GRANT:
            self._channel.send(Kind.GRANT, self._number, pack_count(self._owed))
            self._owed = 0

    def credited(self, count: int) -> None:
        self._room += count
        if self._room > WINDOW:
            raise FrameError("more was consumed than was sent")
        self._push()

    def closed(self) -> None:
        unsent = bool(self._unsent)
        self._lose(ConnectionResetError("the peer is gone") if unsent else None)

    def lost(self, why: str) -> None:
        self._lose(ConnectionResetError(why))

    # Of asyncio: reading.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._consumed(0)

    # Of asyncio: writing.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        if self._ended:
            raise RuntimeError("write after write_eof")
        self._unsent += data
        self._push()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._ended = True
        self._push()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low
        self._regulate()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def _push(self) -> None:
        """Send what there is room for, and then what was to follow it."""
        if self._over:
            return
        while self._unsent and self._room:
            piece = bytes(self._unsent[: min(self._room, LARGEST_DATA)])
            del self._unsent[: len(piece)]
            self._room -= len(piece)
            self._channel.send(Kind.DATA, self._number, piece)
        if self._ended and not self._unsent and not self._end_sent:
            self._end_sent = True
            self._channel.send(Kind.DATA, self._number)
        self._regulate()
        if self._closing and self._end_sent and self._room == WINDOW:
            self.abort()

    def _regulate(self) -> None:
        """Tell the protocol when the buffer is too full, and when it is not any more."""
        size = len(self._unsent)
        if self._protocol is None or self._closing:
            return
        if not self._full and size > self._high:
            self._full = True
            self._protocol.pause_writing()
        elif self._full and size <= self._low:
            self._full = False
            self._protocol.resume_writing()

    # Of asyncio: the end.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._ended = True
        self._consumed(0)
        self._push()

    def abort(self) -> None:
        self._channel.hang_up(self._number)
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._over:
            return
        self._over = self._closing = self._ended = True
        self._unsent.clear()
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error)


class Listener:
    """A socket that init listens on, and the connections to it."""

    def __init__(
        self, channel: Channel, number: int, on_connection: OnConnection,
        on_close: Callable[["Listener"], None],
    ) -> None:  # fmt: skip
        self._channel = channel
        self._number = number
        self._connections = Connections(on_connection)
        self._on_close = on_close
        self.port = 0
        channel.accept(number, self._accept)

    def _accept(self, number: int) -> Tunnel:
        loop = asyncio.get_running_loop()
        tunnel = Tunnel(self._channel, number, self.port)
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        tunnel.set_protocol(protocol)
        protocol.connection_made(tunnel)
        writer = asyncio.StreamWriter(tunnel, protocol, reader, loop)
        self._connections.start(reader, writer)
        return tunnel

    async def close(self) -> None:
        self._channel.accept_no_more(self._number)
        self._on_close(self)
        await self._connections.close()
