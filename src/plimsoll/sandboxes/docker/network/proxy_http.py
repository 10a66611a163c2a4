"""A strict HTTP/1.1 parser for the egress proxy.

A message that two programs could read differently (two lengths, folded lines, bare line ends, a
host in more than one place) is refused, never repaired.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from plimsoll.sandboxes.docker.network.allowlist import Host, parse_host

__all__ = ["BadMessage", "Framing", "MessageReader", "Request", "Response", "relay_body"]

CHUNK = 64 * 1024
MAX_HEAD = 64 * 1024
_MAX_CHUNK_LINE = 4096

Framing = int | Literal["chunked", "to the end"]
"""The length of a body."""
Headers = Sequence[tuple[str, str]]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_TARGET = re.compile(r"[!-~]+")
_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/?#\\]+))(?::(?P<port>\d{1,5}))?"
)
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5]\d\d)(?: (.*))?")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}")
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class BadMessage(Exception):
    """A refused message, with the HTTP status of the response."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class MessageReader:
    """Reads a stream in bounded chunks, independent of the limit of its StreamReader."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()

    @property
    def has_data(self) -> bool:
        """Whether the buffer has data."""
        return bool(self._buffer)

    async def head(self) -> list[str] | None:
        """The lines up to the empty line; None if the stream ends before the first byte."""
        raw = await self._until(b"\r\n\r\n", MAX_HEAD, 431)
        if raw is None:
            return None
        lines = raw[:-4].decode("latin-1").split("\r\n")
        if any("\n" in line or "\r" in line or "\0" in line for line in lines):
            raise BadMessage("a line of the head does not end with CR LF")
        return lines

    async def line(self) -> bytes:
        found = await self._until(b"\r\n", _MAX_CHUNK_LINE, 400)
        if found is None:
            raise BadMessage("the body ends too early")
        return found[:-2]

    async def read_some(self, most: int = CHUNK) -> bytes:
        """Buffered data or the next chunk; empty at the end of the stream."""
        if not self._buffer:
            return await self._reader.read(min(most, CHUNK))
        taken = bytes(self._buffer[:most])
        del self._buffer[:most]
        return taken

    async def _until(self, mark: bytes, limit: int, status: int) -> bytes | None:
        looked = 0
        while (found := self._buffer.find(mark, looked)) < 0:
            if len(self._buffer) >= limit:
                raise _too_long(limit, status)
            looked = max(0, len(self._buffer) - len(mark) + 1)
            more = await self._reader.read(min(CHUNK, limit))
            if not more and self._buffer:
                raise BadMessage("the connection closed in the middle of a message")
            if not more:
                return None
            self._buffer += more
        if found > limit:
            raise _too_long(limit, status)
        taken = bytes(self._buffer[: found + len(mark)])
        del self._buffer[: found + len(mark)]
        return taken


def _too_long(limit: int, status: int) -> BadMessage:
    return BadMessage(f"more than {limit} bytes in the head or in a line of the body", status)


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request to the proxy."""

    method: str
    host: Host
    port: int
    path: str
    """Empty for CONNECT."""
    headers: Headers
    body: Framing
    keep_alive: bool
    is_http10: bool
    """HTTP/1.0: no chunks, no interim responses."""

    @classmethod
    def parse(cls, lines: list[str]) -> "Request":
        words = lines[0].split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
            raise BadMessage("not an HTTP/1.1 request")
        method, target, version = words
        if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
            raise BadMessage("not an HTTP/1.1 request")
        headers = _parse_headers(lines[1:])
        is_http10 = version == "HTTP/1.0"
        body = _framing(headers)
        if is_http10 and body == "chunked":
            raise BadMessage("HTTP/1.0 has no chunks")
        if method == "CONNECT":
            host, port = _authority(target, None)
            return cls(method, host, port, "", headers, 0, False, is_http10)
        host, port, path = _absolute(target)
        keep = not is_http10 and "close" not in _list_tokens(
            headers, "connection", "proxy-connection"
        )
        return cls(method, host, port, path, headers, body or 0, keep, is_http10)

    def head(self) -> bytes:
        """The head for the server, with the host that was checked."""
        host = f"[{self.host}]" if ":" in str(self.host) else str(self.host)
        host = host if self.port == 80 else f"{host}:{self.port}"
        headers = [(n, v) for n, v in _end_to_end_headers(self.headers) if n.lower() != "host"]
        framing = [("Transfer-Encoding", "chunked")] if self.body == "chunked" else []
        lines = [("Host", host), *headers, *framing, ("Connection", "close")]
        return _encode(f"{self.method} {self.path} HTTP/1.1", lines)


@dataclass(frozen=True, slots=True)
class Response:
    """A server's response."""

    status: int
    reason: str
    headers: Headers
    body: Framing

    @classmethod
    def parse(cls, lines: list[str], method: str) -> "Response":
        found = _STATUS.fullmatch(lines[0])
        if found is None:
            raise BadMessage("not an HTTP/1.1 response")
        status = int(found[1])
        headers = _parse_headers(lines[1:])
        if method == "HEAD" or status < 200 or status in (204, 304):
            return cls(status, found[2] or "", headers, 0)
        body = _framing(headers)
        return cls(status, found[2] or "", headers, "to the end" if body is None else body)

    @property
    def interim(self) -> bool:
        return self.status < 200

    def head(self, *, framing: Headers) -> bytes:
        """The head for the client, with the given framing."""
        lines = [*_end_to_end_headers(self.headers), *framing]
        return _encode(f"HTTP/1.1 {self.status} {self.reason}", lines)


async def relay_body(
    reader: MessageReader, writer: asyncio.StreamWriter, framing: Framing, *, chunked: bool
) -> None:
    """Relay a body with backpressure; `chunked` is the framing of the output."""
    if framing == "chunked":
        while size := await _chunk_size(reader):
            await _relay_bytes(reader, writer, size, chunked=chunked)
            if await reader.line():
                raise BadMessage("a chunk is longer than its size")
        # Trailers are unchecked header fields and are dropped.
        while await reader.line():
            pass
    elif framing == "to the end":
        while chunk := await reader.read_some():
            await _write(writer, chunk, chunked=chunked)
    else:
        await _relay_bytes(reader, writer, framing, chunked=chunked)
    if chunked:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _relay_bytes(
    reader: MessageReader, writer: asyncio.StreamWriter, size: int, *, chunked: bool
) -> None:
    while size:
        chunk = await reader.read_some(min(size, CHUNK))
        if not chunk:
            raise BadMessage("the body ends too early")
        size -= len(chunk)
        await _write(writer, chunk, chunked=chunked)


async def _write(writer: asyncio.StreamWriter, chunk: bytes, *, chunked: bool) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
    await writer.drain()


async def _chunk_size(reader: MessageReader) -> int:
    size = (await reader.line()).partition(b";")[0].rstrip(b" \t")
    if not _HEX.fullmatch(size):
        raise BadMessage("not the size of a chunk")
    return int(size, 16)


def _parse_headers(lines: list[str]) -> Headers:
    headers: list[tuple[str, str]] = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadMessage("not a header field")
        headers.append((name, value.strip(" \t")))
    return headers


def _list_tokens(headers: Headers, *names: str) -> set[str]:
    """The tokens of list-valued header fields."""
    values = (value for name, value in headers if name.lower() in names)
    return {word.strip().lower() for value in values for word in value.split(",")}


def _framing(headers: Headers) -> Framing | None:
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    if codings:
        if lengths or codings != ["chunked"]:
            raise BadMessage("more than one length, or a coding other than chunked")
        return "chunked"
    if not lengths:
        return None
    if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0]):
        raise BadMessage("not a single valid length")
    return int(lengths[0])


def _end_to_end_headers(headers: Headers) -> Headers:
    dropped = _HOP_BY_HOP | (_list_tokens(headers, "connection") - {"content-length", "host"})
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _encode(first: str, headers: Headers) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _absolute(target: str) -> tuple[Host, int, str]:
    if target[:7].lower() != "http://":
        raise BadMessage("this is a proxy: it takes http:// addresses and CONNECT")
    rest = target[7:]
    cut = next((i for i, char in enumerate(rest) if char in "/?#"), len(rest))
    host, port = _authority(rest[:cut], 80)
    path = rest[cut:].partition("#")[0]
    return host, port, path if path.startswith("/") else f"/{path}"


def _authority(text: str, default: int | None) -> tuple[Host, int]:
    found = _AUTHORITY.fullmatch(text)
    port = default if found is None or found["port"] is None else int(found["port"])
    if found is None or port is None or not 0 < port < 65536:
        raise BadMessage("not a host and a port")
    if found["v6"] is not None and ":" not in found["v6"]:
        raise BadMessage("not a host and a port")
    try:
        return parse_host(found["v6"] or found["name"]), port
    except ValueError:
        raise BadMessage("not a host name or an address in its usual form") from None
