"""Relays connections from inside a sandbox to the HTTP server."""

import asyncio
import socket
from collections.abc import Callable

from plimsoll.core.cancellation import run_to_completion

__all__ = ["relay"]

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
    except ConnectionError:
        writer.transport.abort()


async def _close(copies: list[asyncio.Task[None]], writer: asyncio.StreamWriter) -> None:
    for copy in copies:
        copy.cancel()
    await asyncio.wait(copies)
    writer.transport.abort()
