"""The HTTP server of the gateway: listens on a port, and serves connections from sandboxes."""

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import UsageError
from plimsoll.gateway.http.handler import GatewayHandler
from plimsoll.gateway.http.idle_connections import IdleConnections

__all__ = ["HttpServer", "Listen"]

CHUNK_BYTES = 1 << 17


async def relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    make_protocol: Callable[[], asyncio.BaseProtocol],
) -> None:
    """Copy bytes between a connection and a new connection of the server, until both ends are done.

    The server's end is an in-process socket pair: no port listens for it.
    """
    client_end, server_end = socket.socketpair()
    loop = asyncio.get_running_loop()
    try:
        await loop.connect_accepted_socket(make_protocol, server_end)
        inner_reader, inner_writer = await asyncio.open_connection(sock=client_end)
    except BaseException:
        client_end.close()
        server_end.close()
        raise
    copies = [
        asyncio.create_task(_copy(reader, inner_writer)),
        asyncio.create_task(_copy(inner_reader, writer)),
    ]
    try:
        # When the server closes its end, the other direction is not read any more.
        await asyncio.wait(copies[1:])
    finally:
        await run_to_completion(_close(copies, inner_writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one side is lost; pass the end of the stream on."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:  # a lost connection: not each is a ConnectionError, for example ETIMEDOUT
        writer.transport.abort()


async def _close(copies: list[asyncio.Task[None]], writer: asyncio.StreamWriter) -> None:
    for copy in copies:
        copy.cancel()
    await asyncio.wait(copies)
    writer.transport.abort()


log = logging.getLogger(__name__)

LINGERING_SECONDS = 2.0
"""The time that a client may go on sending a body that was refused."""
IDLE_SECONDS = 120.0
"""The keep-alive timeout. Client libraries drop an idle connection after 5 to 90 seconds, so none
sends a request over a connection that is being closed.
"""
CLOSE_SECONDS = 2.0
READ_BYTES = 1 << 20
"""The read buffer of a connection: most bodies fit completely."""
MAX_OPEN_FILES = 65_536
"""The limit on the limit: child processes inherit it, and some programs iterate over all
descriptors.
"""


@dataclass(frozen=True, slots=True)
class Listen:
    """The address to listen on. Port 0 means any free port."""

    host: str = "127.0.0.1"
    port: int = 0


class HttpServer:
    """Serves the requests of a handler, over TCP and over relayed connections."""

    def __init__(self, handler: GatewayHandler, idle: IdleConnections, listen: Listen) -> None:
        self.port = 0
        self._handler = handler
        self._idle = idle
        self._listen = listen
        self._protocols: web.Server | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises `UsageError` if the address cannot be listened on."""
        self._protocols = web.Server(
            self._handler,
            handler_cancellation=True,
            access_log=None,
            logger=TerseLog(log),
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
            read_bufsize=READ_BYTES,
            lingering_time=LINGERING_SECONDS,
        )
        raise_open_files_limit()
        host, port = self._listen.host, self._listen.port
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._new_protocol, host, port, reuse_address=True, backlog=1024
            )
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"the gateway cannot listen on {host}:{port}: {reason}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection that comes from inside a sandbox."""
        if self._server is None or not self._server.is_serving():
            raise ConnectionRefusedError("the gateway is not open")
        await relay(reader, writer, self._new_protocol)

    def close_idle(self, now: float) -> None:
        """Close the connections that have sent no request in time."""
        if self._idle and self._protocols is not None:
            self._idle.close_expired(now, self._protocols.connections)

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close all connections, after `stop_listening`."""
        assert self._server is not None and self._protocols is not None
        self._protocols.pre_shutdown()
        await self._protocols.shutdown(CLOSE_SECONDS)
        await self._server.wait_closed()

    def _new_protocol(self) -> RequestHandler:
        """The protocol of a new connection."""
        assert self._protocols is not None
        connection = self._protocols()
        self._idle.add(connection)
        return connection


class TerseLog:
    """A logger for the HTTP library that omits the arguments: an invalid request may contain a key
    anywhere."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def debug(self, msg: str, *_: object, **__: object) -> None:
        self._log.debug(msg.replace("%s", "?"))

    def exception(self, msg: str, *_: object, exc_info: object = None, **__: object) -> None:
        self._log.debug("%s %s", msg.replace("%s", "?"), type(exc_info).__name__)

    warning = error = debug


def raise_open_files_limit() -> None:
    """Raise the soft limit on open files, which is often 1,024. A busy session needs two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
