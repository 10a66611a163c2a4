"""The host's side of a socket that listens in a local sandbox."""

import asyncio
import contextlib
import os
import socket
from typing import Any

from plimsoll.sandboxes.connections import Connections
from plimsoll.sandboxes.protocol import OnConnection

__all__ = ["LocalServed", "drop_socket"]


class LocalServed:
    """Made by `LocalSandbox.serve`. The socket was made in the sandbox, and is read here."""

    def __init__(self, server: asyncio.Server, connections: Connections, port: int) -> None:
        self._server = server
        self._connections = connections
        self._port = port

    @classmethod
    async def start(cls, descriptor: int, on_connection: OnConnection) -> "LocalServed":
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


def drop_socket(reply: "asyncio.Future[dict[str, Any]]") -> None:
    """Close the socket that came after nobody wanted it any more."""
    if not reply.cancelled() and reply.exception() is None:
        with contextlib.suppress(KeyError, OSError):
            os.close(int(reply.result()["fd"]))
