"""The proxy that is the only way out of a sandbox whose network is an allowlist.

It runs in this process, over streams that a sandbox's own socket hands out, so the sandbox
needs no network at all: a host that is not listed cannot be reached by any other way. The
proxies to be had as libraries serve sockets of their own, so this one is written here.

What is asked for is decided by the name in the request. Only then is the name resolved, and
the connection goes to the very address that was checked.
"""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
"""The addresses of a name; OSError where it has none."""

_MAX_CONNECTIONS = 256
_CONNECT_SECONDS = 10.0
_HEAD_SECONDS = 120.0
_LINGER_SECONDS = 2.0
_MAX_COUNTED_HOSTS = 1000
_OTHERS = "(others)"
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}

# Threads of their own: names that do not resolve must not hold up what else needs a thread.
_resolvers = ThreadPoolExecutor(8, "plimsoll-egress")


async def _resolve(name: str) -> Sequence[Address]:
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(
        _resolvers, lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    )
    return [ip_address(entry[4][0]) for entry in found]


class _Refused(Exception):
    """Why a request is not served, and the status to say it with."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class EgressProxy:
    """Serves a sandbox's connections, HTTP and CONNECT, to the hosts of an allowlist only."""

    def __init__(self, allowed_hosts: Sequence[str], *, resolve: Resolve = _resolve) -> None:
        self._rules = Allowlist(allowed_hosts)
        self._resolve = resolve
        self._open = 0
        self._allowed: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    @property
    def allowed(self) -> Mapping[str, int]:
        """How often each host was let through; past a thousand hosts, the rest together."""
        return self._allowed

    @property
    def refused(self) -> Mapping[str, int]:
        return self._refused

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        source = MessageReader(reader)
        self._open += 1
        try:
            if self._open > _MAX_CONNECTIONS:
                raise _Refused(503, f"more than {_MAX_CONNECTIONS} connections at once")
            while await self._serve(source, writer):
                pass
        except BadMessage as error:
            await _send_error(source, writer, error.status, f"no request that is served: {error}")
        except _Refused as error:
            await _send_error(source, writer, error.status, str(error))
        except OSError:
            pass  # One of the two sides is gone, and that is all there is to tell the other.
        finally:
            self._open -= 1
            await _close(writer)

    async def _serve(self, source: MessageReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; whether another may follow."""
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                lines = await source.head()
        except TimeoutError:
            if not source.begun:
                return False
            raise _Refused(408, f"no whole request within {_HEAD_SECONDS:g} s") from None
        if lines is None:
            return False
        request = Request.parse(lines)
        reader, server = await self._connect(request.host, request.port)
        try:
            if request.method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await writer.drain()
                await _relay_tunnel(source, writer, MessageReader(reader), server)
                return False
            return await _exchange(request, source, writer, MessageReader(reader), server)
        finally:
            await _close(server)

    async def _connect(
        self, host: Host, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._rules.allows(host):
            _count(self._refused, str(host))
            raise _Refused(403, f"the task's allowed_hosts do not have {host}")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                addresses = await self._addresses(host)
                _count(self._allowed, str(host))
                return await _connect_to_any(addresses, port)
        except TimeoutError:
            raise _Refused(504, f"{host}:{port} does not answer") from None
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise _Refused(502, f"{host}:{port} cannot be reached: {why}") from None

    async def _addresses(self, host: Host) -> Sequence[Address]:
        if not isinstance(host, str):
            return [host]
        found = await self._resolve(host)
        usable = [address for address in found if self._rules.may_resolve_to(address)]
        if found and not usable:
            _count(self._refused, host)
            raise _Refused(
                403,
                f"{host} stands for {found[0]}, an address of this host or its neighbours, "
                "which allowed_hosts has to list itself",
            )
        return usable


async def _connect_to_any(
    addresses: Sequence[Address], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address that takes one."""
    failed: OSError = OSError(0, "the name has no address")
    for address in dict.fromkeys(addresses):
        try:
            return await asyncio.open_connection(str(address), port)
        except OSError as error:
            failed = error
    raise failed


async def _exchange(
    request: Request,
    source: MessageReader,
    writer: asyncio.StreamWriter,
    server_source: MessageReader,
    server: asyncio.StreamWriter,
) -> bool:
    """One request and its answer, both at once: a server may answer before it has all."""
    server.write(request.head())
    chunked = request.body == "chunked"
    sending = asyncio.create_task(relay_body(source, server, request.body, chunked=chunked))
    answering = asyncio.create_task(_relay_response(request, server_source, writer))
    try:
        await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and isinstance(sending.exception(), BadMessage):
            sending.result()
        complete = await answering
        return complete and request.keep_alive and sending.done() and not sending.exception()
    finally:
        await _cancel_all(sending, answering)


async def _relay_response(
    request: Request, source: MessageReader, writer: asyncio.StreamWriter
) -> bool:
    """Carry the answer; whether its end can be told on a connection that stays."""
    begun = False
    try:
        while True:
            lines = await source.head()
            if lines is None:
                raise BadMessage("the server closed the connection without an answer")
            response = Response.parse(lines, request.method)
            if response.status == 101:
                raise BadMessage("the server wants another protocol")
            if not response.interim:
                break
            if not request.old:
                writer.write(response.head(framing=[]))
                await writer.drain()
        begun = True
        return await _relay_final_response(request, response, source, writer)
    except BadMessage as error:
        if begun:
            raise ConnectionError("the answer broke off") from error
        raise _Refused(502, f"{request.host}: {error}") from None


async def _relay_final_response(
    request: Request, response: Response, source: MessageReader, writer: asyncio.StreamWriter
) -> bool:
    chunked = not isinstance(response.body, int) and not request.old
    framing: Headers = [("Transfer-Encoding", "chunked")] if chunked else []
    stays = request.keep_alive and (chunked or isinstance(response.body, int))
    if not stays:
        framing = [*framing, ("Connection", "close")]
    writer.write(response.head(framing=framing))
    await relay_body(source, writer, response.body, chunked=chunked)
    return stays


async def _relay_tunnel(
    source: MessageReader,
    writer: asyncio.StreamWriter,
    server_source: MessageReader,
    server: asyncio.StreamWriter,
) -> None:
    """Carry bytes both ways until both ends are done; each end may close on its own."""
    ways = (
        asyncio.create_task(_pump(source, server)),
        asyncio.create_task(_pump(server_source, writer)),
    )
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        for way in done:
            way.result()
    finally:
        await _cancel_all(*ways)


async def _pump(source: MessageReader, writer: asyncio.StreamWriter) -> None:
    while piece := await source.some():
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _cancel_all(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _send_error(
    source: MessageReader, writer: asyncio.StreamWriter, status: int, why: str
) -> None:
    """Say why a request is not served, and end the connection."""
    text = f"plimsoll: {why}\n".encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            writer.write(head.encode() + text)
            await writer.drain()
            # A socket closed with bytes unread is reset, and the answer lost with it.
            if writer.can_write_eof():
                writer.write_eof()
                while await source.some():
                    pass


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            await writer.wait_closed()
    except OSError:  # TimeoutError too: what is left to be sent is not taken.
        writer.transport.abort()


def _count(counter: Counter[str], host: str) -> None:
    known = host in counter or len(counter) < _MAX_COUNTED_HOSTS
    counter[host if known else _OTHERS] += 1
