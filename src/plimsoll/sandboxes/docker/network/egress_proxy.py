"""The egress proxy: the only way out of a sandbox whose network is an allowlist.

It runs in this process, over connections that the sandbox's init forwards. The sandbox itself has
no network, so a host that is not listed cannot be reached in any other way. Proxy libraries serve
sockets of their own, so this one is written here.

The name in the request is checked first. Only then is it resolved, and the connection goes to the
address that was checked.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from plimsoll.sandboxes.docker.network.allowlist import Address, Allowlist, Host
from plimsoll.sandboxes.docker.network.proxy_http import (
    BadMessage,
    Headers,
    MessageReader,
    Request,
    Response,
    relay_body,
)

__all__ = ["EgressProxy", "Resolve"]

Resolve = Callable[[str], Awaitable[Sequence[Address]]]
"""Resolves a name to addresses; raises OSError if there are none."""

_MAX_CONNECTIONS = 256
_CONNECT_SECONDS = 10.0
_HEAD_SECONDS = 120.0
_LINGER_SECONDS = 2.0
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}

# A pool of its own: slow name lookups must not block other users of threads.
_resolvers = ThreadPoolExecutor(8, "plimsoll-egress")


async def _resolve(name: str) -> Sequence[Address]:
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(
        _resolvers, lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    )
    return [ip_address(entry[4][0]) for entry in found]


class _Refused(Exception):
    """A refused request: the reason and the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class EgressProxy:
    """Serves a sandbox's connections, HTTP and CONNECT, only to the hosts of an allowlist."""

    def __init__(self, allowed_hosts: Sequence[str], *, resolve: Resolve = _resolve) -> None:
        self._rules = Allowlist(allowed_hosts)
        self._resolve = resolve
        self._open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        client = MessageReader(reader)
        self._open += 1
        try:
            if self._open > _MAX_CONNECTIONS:
                raise _Refused(503, f"more than {_MAX_CONNECTIONS} connections at once")
            while await self._serve_request(client, writer):
                pass
        except BadMessage as error:
            await _send_error(client, writer, error.status, f"bad request: {error}")
        except _Refused as error:
            await _send_error(client, writer, error.status, str(error))
        except OSError:
            pass  # one side closed the connection; closing the other tells it
        finally:
            self._open -= 1
            await _close(writer)

    async def _serve_request(self, client: MessageReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request. Returns whether another may follow."""
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                lines = await client.head()
        except TimeoutError:
            if not client.has_data:
                return False
            raise _Refused(408, f"no complete request within {_HEAD_SECONDS:g} s") from None
        if lines is None:
            return False
        request = Request.parse(lines)
        reader, server = await self._connect(request.host, request.port)
        try:
            if request.method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await writer.drain()
                await _relay_tunnel(client, writer, MessageReader(reader), server)
                return False
            return await _exchange(request, client, writer, MessageReader(reader), server)
        finally:
            await _close(server)

    async def _connect(
        self, host: Host, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._rules.allows(host):
            raise _Refused(403, f"{host} is not in the task's allowed_hosts")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                addresses = await self._addresses(host)
                return await _connect_to_any(addresses, port)
        except TimeoutError:
            raise _Refused(504, f"{host}:{port} does not answer") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise _Refused(502, f"{host}:{port} cannot be reached: {reason}") from None

    async def _addresses(self, host: Host) -> Sequence[Address]:
        if not isinstance(host, str):
            return [host]
        found = await self._resolve(host)
        allowed = [address for address in found if self._rules.may_resolve_to(address)]
        if found and not allowed:
            raise _Refused(
                403,
                f"{host} resolves to {found[0]}, an address of this host or a metadata service, "
                "which must itself be in allowed_hosts",
            )
        return allowed


async def _connect_to_any(
    addresses: Sequence[Address], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address that accepts one."""
    failed: OSError = OSError(0, "the name has no address")
    for address in dict.fromkeys(addresses):
        try:
            return await asyncio.open_connection(str(address), port)
        except OSError as error:
            failed = error
    raise failed


async def _exchange(
    request: Request,
    reader: MessageReader,
    writer: asyncio.StreamWriter,
    server_reader: MessageReader,
    server: asyncio.StreamWriter,
) -> bool:
    """Relay a request and its response concurrently: a server may answer early."""
    server.write(request.head())
    chunked = request.body == "chunked"
    request_task = asyncio.create_task(relay_body(reader, server, request.body, chunked=chunked))
    response_task = asyncio.create_task(_relay_response(request, server_reader, writer))
    try:
        await asyncio.wait({request_task, response_task}, return_when=asyncio.FIRST_COMPLETED)
        if request_task.done() and isinstance(request_task.exception(), BadMessage):
            request_task.result()
        complete = await response_task
        return (
            complete and request.keep_alive and request_task.done() and not request_task.exception()
        )
    finally:
        await _cancel_all(request_task, response_task)


async def _relay_response(
    request: Request, reader: MessageReader, writer: asyncio.StreamWriter
) -> bool:
    """Relay the response. Returns whether the connection can be kept open after it."""
    started = False
    try:
        while True:
            lines = await reader.head()
            if lines is None:
                raise BadMessage("the server closed the connection without a response")
            response = Response.parse(lines, request.method)
            if response.status == 101:
                raise BadMessage("the server switches to another protocol")
            if not response.interim:
                break
            if not request.is_http10:
                writer.write(response.head(framing=[]))
                await writer.drain()
        started = True
        return await _relay_final_response(request, response, reader, writer)
    except BadMessage as error:
        if started:
            raise ConnectionError("the response ended early") from error
        raise _Refused(502, f"{request.host}: {error}") from None


async def _relay_final_response(
    request: Request, response: Response, reader: MessageReader, writer: asyncio.StreamWriter
) -> bool:
    chunked = not isinstance(response.body, int) and not request.is_http10
    framing: Headers = [("Transfer-Encoding", "chunked")] if chunked else []
    keeps_open = request.keep_alive and (chunked or isinstance(response.body, int))
    if not keeps_open:
        framing = [*framing, ("Connection", "close")]
    writer.write(response.head(framing=framing))
    await relay_body(reader, writer, response.body, chunked=chunked)
    return keeps_open


async def _relay_tunnel(
    reader: MessageReader,
    writer: asyncio.StreamWriter,
    server_reader: MessageReader,
    server: asyncio.StreamWriter,
) -> None:
    """Copy bytes in both directions until both ends are done; either may half-close."""
    tasks = (
        asyncio.create_task(_copy(reader, server)),
        asyncio.create_task(_copy(server_reader, writer)),
    )
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await _cancel_all(*tasks)


async def _copy(reader: MessageReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read_some():
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _cancel_all(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _send_error(
    reader: MessageReader, writer: asyncio.StreamWriter, status: int, reason: str
) -> None:
    """Send an error response and end the connection."""
    text = f"plimsoll: {reason}\n".encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            writer.write(head.encode() + text)
            await writer.drain()
            # Closing a socket with unread bytes resets it, and the response would be lost.
            if writer.can_write_eof():
                writer.write_eof()
                while await reader.read_some():
                    pass


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            await writer.wait_closed()
    except OSError:  # including TimeoutError: the peer does not read the rest
        writer.transport.abort()
