"""HTTP/1.1 as the allowlist proxy reads it: strictly, so that nobody else reads it otherwise.

A message that two programs could read in two ways (two lengths, folded lines, bare line
ends, a host in more than one place) is refused, never repaired.
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
"""How long a body is."""
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
    """A message that is refused, with the status to answer with."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


class MessageReader:
    """A stream read in bounded pieces, whatever the limit of its reader is."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._held = bytearray()

    @property
    def begun(self) -> bool:
        """Whether there is something that has been read and not yet taken."""
        return bool(self._held)

    async def head(self) -> list[str] | None:
        """The lines up to the empty one; None where the stream ends before the first byte."""
        raw = await self._until(b"\r\n\r\n", MAX_HEAD, 431)
        if raw is None:
            return None
        lines = raw[:-4].decode("latin-1").split("\r\n")
        if any("\n" in line or "\r" in line or "\0" in line for line in lines):
            raise BadMessage("a line of the head ends in something else than CR LF")
        return lines

    async def line(self) -> bytes:
        found = await self._until(b"\r\n", _MAX_CHUNK_LINE, 400)
        if found is None:
            raise BadMessage("the body ends too early")
        return found[:-2]

    async def some(self, most: int = CHUNK) -> bytes:
        """What has come, or comes next; empty at the end."""
        if not self._held:
            return await self._reader.read(min(most, CHUNK))
        taken = bytes(self._held[:most])
        del self._held[:most]
        return taken

    async def _until(self, mark: bytes, limit: int, status: int) -> bytes | None:
        looked = 0
        while (found := self._held.find(mark, looked)) < 0:
            if len(self._held) >= limit:
                raise BadMessage(f"more than {limit} bytes before it ends", status)
            looked = max(0, len(self._held) - len(mark) + 1)
            more = await self._reader.read(min(CHUNK, limit))
            if not more and self._held:
                raise BadMessage("it ends in the middle")
            if not more:
                return None
            self._held += more
        if found > limit:
            raise BadMessage(f"more than {limit} bytes before it ends", status)
        taken = bytes(self._held[: found + len(mark)])
        del self._held[: found + len(mark)]
        return taken


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks the proxy for."""

    method: str
    host: Host
    port: int
    path: str
    """Empty for CONNECT."""
    headers: Headers
    body: Framing
    keep_alive: bool
    old: bool
    """HTTP/1.0: no chunks, no interim answers."""

    @classmethod
    def parse(cls, lines: list[str]) -> "Request":
        words = lines[0].split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
            raise BadMessage("not an HTTP/1.1 request")
        method, target, version = words
        if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
            raise BadMessage("not an HTTP/1.1 request")
        headers = _parse_headers(lines[1:])
        old = version == "HTTP/1.0"
        body = _framing(headers)
        if old and body == "chunked":
            raise BadMessage("HTTP/1.0 has no chunks")
        if method == "CONNECT":
            host, port = _authority(target, None)
            return cls(method, host, port, "", headers, 0, False, old)
        host, port, path = _absolute(target)
        keep = not old and "close" not in _listed(headers, "connection", "proxy-connection")
        return cls(method, host, port, path, headers, body or 0, keep, old)

    def head(self) -> bytes:
        """The request as its server gets it: the host is the one that was checked."""
        shown = f"[{self.host}]" if ":" in str(self.host) else str(self.host)
        shown = shown if self.port == 80 else f"{shown}:{self.port}"
        kept = [(n, v) for n, v in _end_to_end(self.headers) if n.lower() != "host"]
        framing = [("Transfer-Encoding", "chunked")] if self.body == "chunked" else []
        lines = [("Host", shown), *kept, *framing, ("Connection", "close")]
        return _encode(f"{self.method} {self.path} HTTP/1.1", lines)


@dataclass(frozen=True, slots=True)
class Response:
    """What a server answers."""

    status: int
    reason: str
    headers: Headers
    body: Framing

    @classmethod
    def parse(cls, lines: list[str], method: str) -> "Response":
        found = _STATUS.fullmatch(lines[0])
        if found is None:
            raise BadMessage("not an HTTP/1.1 answer")
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
        """The answer as the client gets it, with its framing."""
        lines = [*_end_to_end(self.headers), *framing]
        return _encode(f"HTTP/1.1 {self.status} {self.reason}", lines)


async def relay_body(
    source: MessageReader, writer: asyncio.StreamWriter, framing: Framing, *, chunked: bool
) -> None:
    """Carry a body, no faster than it is taken; `chunked` is how it is written."""
    if framing == "chunked":
        while size := await _chunk_size(source):
            await _relay_bytes(source, writer, size, chunked=chunked)
            if await source.line():
                raise BadMessage("a chunk is longer than it says")
        # Trailers are fields that nobody has checked: they end here.
        while await source.line():
            pass
    elif framing == "to the end":
        while piece := await source.some():
            await _write(writer, piece, chunked=chunked)
    else:
        await _relay_bytes(source, writer, framing, chunked=chunked)
    if chunked:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _relay_bytes(
    source: MessageReader, writer: asyncio.StreamWriter, size: int, *, chunked: bool
) -> None:
    while size:
        piece = await source.some(min(size, CHUNK))
        if not piece:
            raise BadMessage("the body ends too early")
        size -= len(piece)
        await _write(writer, piece, chunked=chunked)


async def _write(writer: asyncio.StreamWriter, piece: bytes, *, chunked: bool) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
    await writer.drain()


async def _chunk_size(source: MessageReader) -> int:
    size = (await source.line()).partition(b";")[0].rstrip(b" \t")
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


def _listed(headers: Headers, *names: str) -> set[str]:
    """The words of fields that are lists."""
    values = (value for name, value in headers if name.lower() in names)
    return {word.strip().lower() for value in values for word in value.split(",")}


def _framing(headers: Headers) -> Framing | None:
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    if codings:
        if lengths or codings != ["chunked"]:
            raise BadMessage("a length in more than one way, or a coding other than chunked")
        return "chunked"
    if not lengths:
        return None
    if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0]):
        raise BadMessage("not one length")
    return int(lengths[0])


def _end_to_end(headers: Headers) -> Headers:
    dropped = _HOP_BY_HOP | (_listed(headers, "connection") - {"content-length", "host"})
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
