"""Connections made inside a sandbox, served in this process over the stream to its init."""

import asyncio
from collections.abc import Callable

from plimsoll.sandboxes.connections import Connections
from plimsoll.sandboxes.container.channel import Channel
from plimsoll.sandboxes.container.frames import (
    MAX_DATA,
    WINDOW,
    FrameError,
    Kind,
    pack_count,
)
from plimsoll.sandboxes.protocol import OnConnection

__all__ = ["Listener", "Tunnel"]

_MIN_GRANT = WINDOW // 4
_HIGH_WATER = 65_536
ADDRESS = "127.0.0.1"


class Tunnel(asyncio.Transport):
    """A connection as an asyncio transport.

    Credit is returned to init as the protocol consumes data, so a peer that sends faster than its
    handler reads is blocked in the sandbox. Closing waits until the peer's socket has accepted all
    written data, like a socket's own buffer.
    """

    def __init__(self, channel: Channel, number: int, port: int) -> None:
        super().__init__({"peername": (ADDRESS, 0), "sockname": (ADDRESS, port)})
        self._channel = channel
        self._number = number
        self._protocol: asyncio.Protocol | None = None
        self._loop = asyncio.get_running_loop()
        self._reading = True
        self._consumed_bytes = 0
        self._peer_eof = False
        self._credit = WINDOW
        self._buffer = bytearray()
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._writing_paused = False
        self._eof_written = False
        """No more data will be written; the end is sent after the buffered data."""
        self._eof_sent = False
        self._closing = False
        self._lost = False

    # Called by the channel.

    def received(self, chunk: bytes) -> None:
        if self._peer_eof:
            raise FrameError("data of a connection after its end")
        self._peer_eof = not chunk
        if self._closing or self._protocol is None:
            self._return_credit(len(chunk))
        elif chunk:
            self._protocol.data_received(chunk)
            self._return_credit(len(chunk))
        elif not self._protocol.eof_received():
            self.close()

    def _return_credit(self, count: int) -> None:
        self._consumed_bytes += count
        if (self._reading or self._closing) and self._consumed_bytes >= _MIN_GRANT:
            self._channel.send(Kind.GRANT, self._number, pack_count(self._consumed_bytes))
            self._consumed_bytes = 0

    def credited(self, count: int) -> None:
        self._credit += count
        if self._credit > WINDOW:
            raise FrameError("more credit than data sent")
        self._flush()

    def closed(self) -> None:
        undelivered = bool(self._buffer)
        self._connection_lost(ConnectionResetError("the peer is gone") if undelivered else None)

    def lost(self, why: str) -> None:
        self._connection_lost(ConnectionResetError(why))

    # asyncio.Transport: reading.

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
        self._return_credit(0)

    # asyncio.Transport: writing.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        if self._eof_written:
            raise RuntimeError("write after write_eof")
        self._buffer += data
        self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_written = True
        self._flush()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low
        self._update_flow_control()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def _flush(self) -> None:
        """Send buffered data within the credit, then the end of data."""
        if self._lost:
            return
        while self._buffer and self._credit:
            chunk = bytes(self._buffer[: min(self._credit, MAX_DATA)])
            del self._buffer[: len(chunk)]
            self._credit -= len(chunk)
            self._channel.send(Kind.DATA, self._number, chunk)
        if self._eof_written and not self._buffer and not self._eof_sent:
            self._eof_sent = True
            self._channel.send(Kind.DATA, self._number)
        self._update_flow_control()
        if self._closing and self._eof_sent and self._credit == WINDOW:
            self.abort()

    def _update_flow_control(self) -> None:
        """Pause or resume the protocol by the size of the buffer."""
        size = len(self._buffer)
        if self._protocol is None or self._closing:
            return
        if not self._writing_paused and size > self._high:
            self._writing_paused = True
            self._protocol.pause_writing()
        elif self._writing_paused and size <= self._low:
            self._writing_paused = False
            self._protocol.resume_writing()

    # asyncio.Transport: closing.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._eof_written = True
        self._return_credit(0)
        self._flush()

    def abort(self) -> None:
        self._channel.close_tunnel(self._number)
        self._connection_lost(None)

    def _connection_lost(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = self._eof_written = True
        self._buffer.clear()
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error)


class Listener:
    """A socket that init listens on, with its connections."""

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

    def _accept(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        tunnel = Tunnel(self._channel, number, self.port)
        # First, because a connection over the limit is closed at once.
        self._channel.open_tunnel(number, tunnel)
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        tunnel.set_protocol(protocol)
        protocol.connection_made(tunnel)
        writer = asyncio.StreamWriter(tunnel, protocol, reader, loop)
        self._connections.start(reader, writer)

    async def close(self) -> None:
        self._channel.stop_accepting(self._number)
        self._on_close(self)
        await self._connections.close()
