"""Streams of a local sandbox on the host: command output, and sockets that listen inside it."""

import asyncio
import contextlib
import os
import socket
from typing import Any

from plimsoll.sandboxes.connections import Connections
from plimsoll.sandboxes.output import Capture, Captured
from plimsoll.sandboxes.protocol import OnConnection, OnOutput, Stream

__all__ = ["LocalServedSocket", "OutputReader", "close_unclaimed_socket"]

_CHUNK = 1 << 18
_LAST_READS = 8


class OutputReader:
    """Reads one output stream of one command, until the stream or the sandbox ends.

    After the command has ended, its background processes may still hold the stream. Their output
    is read and dropped, so that a background server does not die of a closed pipe.
    """

    def __init__(self, stream: Stream, keep: int, on_output: OnOutput | None) -> None:
        self._stream: Stream = stream
        self._capture = Capture(keep)
        self._on_output = on_output
        self._dropping = False
        self._loop = asyncio.get_running_loop()
        read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        self._read_end: int | None = read_end
        self._loop.add_reader(read_end, self._read)

    @property
    def open(self) -> bool:
        return self._read_end is not None

    def _read(self) -> bool:
        """Read once. False if nothing can be read, now or any more."""
        if self._read_end is None:
            return False
        try:
            chunk = os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        if not self._dropping:
            self._capture.feed(chunk)
            if self._on_output is not None:
                self._on_output(self._stream, chunk)
        return True

    def finish(self) -> Captured:
        """Return the output of the command, which has ended. Later output is dropped."""
        for _ in range(_LAST_READS):
            if not self._read():
                break
        self._dropping = True
        self._on_output = None
        captured = self._capture.captured()
        self._capture = Capture(0)
        return captured

    def close_write_end(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.write_end)

    def close(self) -> None:
        if self._read_end is not None:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = None


class LocalServedSocket:
    """Created by `LocalSandbox.serve`. The socket was made in the sandbox, and is served here."""

    def __init__(self, server: asyncio.Server, connections: Connections, port: int) -> None:
        self._server = server
        self._connections = connections
        self._port = port

    @classmethod
    async def start(cls, descriptor: int, on_connection: OnConnection) -> "LocalServedSocket":
        listening = socket.socket(fileno=descriptor)
        connections = Connections(on_connection)
        try:
            server = await asyncio.start_server(connections.start, sock=listening)
        except BaseException:
            listening.close()
            raise
        return cls(server, connections, int(listening.getsockname()[1]))

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        self._server.close()
        await self._connections.close()


def close_unclaimed_socket(reply: "asyncio.Future[dict[str, Any]]") -> None:
    """Close a socket whose reply arrived after its request was given up."""
    if not reply.cancelled() and reply.exception() is None:
        with contextlib.suppress(KeyError, OSError):
            os.close(int(reply.result()["fd"]))
