"""The frames between Plimsoll and a sandbox's init, over one byte stream.

A frame is `u32 length, u8 kind, u32 number`, little endian, followed by the payload. The number of
a request is chosen here and never reused; the number of a tunnel is chosen by init.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from plimsoll.core.text import safe_name

__all__ = [
    "FIRST_TUNNEL",
    "MAX_DATA",
    "MAX_REQUEST",
    "WINDOW",
    "Decoder",
    "Frame",
    "FrameError",
    "Kind",
    "RequestEnd",
    "header",
    "pack_count",
    "pack_fields",
    "read_count",
    "read_fields",
    "read_request_end",
]

MAX_DATA = 65_536
"""The most bytes in one frame of data."""
MAX_REQUEST = 64 << 20
WINDOW = 262_144
"""The most unconsumed bytes of one request or tunnel."""
FIRST_TUNNEL = 1 << 31
_MAX_RESPONSE = 1 << 20
_HEADER = struct.Struct("<IBI")
_COUNT = struct.Struct("<I")


class Kind(IntEnum):
    """The kind of a frame; kinds from 64 on are sent by init."""

    EXEC = 1
    DATA = 2
    KILL = 3
    KILL_ALL = 4
    STATUS = 5
    UNPACK = 6
    PACK = 7
    EMPTY = 8
    LISTEN = 9
    GRANT = 10
    """The host has consumed this many bytes of a tunnel."""
    HANG_UP = 11
    """The host closes a tunnel or a listening socket."""
    BASELINE = 12
    RESET = 13

    READY = 64
    OUT = 65
    ERR = 66
    END = 67
    CONNECT = 68
    CREDIT = 69
    CLOSE = 70


class FrameError(Exception):
    """Invalid data from a sandbox's init."""


class Frame(NamedTuple):
    """A frame, or the part of an OUT or ERR frame that has arrived."""

    kind: int
    number: int
    payload: bytes


_STREAMED = frozenset({int(Kind.OUT), int(Kind.ERR)})
_FROM_INIT = frozenset(int(kind) for kind in Kind if kind >= Kind.READY)


def header(kind: Kind, number: int, length: int) -> bytes:
    return _HEADER.pack(length, kind, number)


def pack_fields(fields: Iterable[bytes]) -> bytes:
    return b"".join(part for field in fields for part in (_COUNT.pack(len(field)), field))


def read_fields(payload: bytes) -> list[bytes]:
    fields: list[bytes] = []
    at = 0
    while at < len(payload):
        start = at + _COUNT.size
        if start > len(payload):
            raise FrameError("a truncated field length")
        (length,) = _COUNT.unpack_from(payload, at)
        at = start + length
        if at > len(payload):
            raise FrameError("a field longer than its frame")
        fields.append(payload[start:at])
    return fields


def pack_count(count: int) -> bytes:
    return _COUNT.pack(count)


def read_count(payload: bytes) -> int:
    if len(payload) != _COUNT.size:
        raise FrameError("not a count")
    return int(_COUNT.unpack(payload)[0])


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """The result of a request, reported by init; fields that do not apply are not set."""

    exit: int | None = None
    signal: int | None = None
    error: str = ""
    """The reason for a failure."""
    nouser: str = ""
    """The user or group that does not exist."""
    files: int = 0
    bytes: int = 0
    skipped: tuple[str, ...] = ()
    processes: int | None = None
    oom_kills: int | None = None
    disk_size: int | None = None
    disk_free: int = 0
    disk_available: int = 0
    disk_files: int | None = None
    disk_as_root: int = 0
    port: int | None = None
    entries: int | None = None
    doubt: str = ""


_TEXTS = frozenset({"error", "nouser", "doubt"})
_NUMBERS = frozenset(RequestEnd.__dataclass_fields__) - _TEXTS - {"skipped"}


def read_request_end(payload: bytes) -> RequestEnd:
    """Parse the payload of an END frame; unknown keys are ignored."""
    fields = read_fields(payload)
    values: dict[str, Any] = {}
    skipped: list[str] = []
    for key, value in zip(fields[::2], fields[1::2], strict=False):
        name = key.decode("ascii", "replace")
        if name in _NUMBERS and value:
            values[name] = _number(value)
        elif name in _TEXTS:
            values[name] = _text(value)
        elif name == "skipped":
            skipped.append(_text(value))
    return RequestEnd(**values, skipped=tuple(skipped))


def _number(value: bytes) -> int:
    if not value.isdigit() or len(value) > 20:
        raise FrameError("not a number")
    return int(value)


def _text(value: bytes) -> str:
    """A message of init; file names in it may contain any byte."""
    return safe_name(value.decode("utf-8", "backslashreplace"))


class Decoder:
    """Decodes chunks, split anywhere, into frames. Buffers at most one frame that is not data.

    OUT and ERR frames are yielded in parts as they arrive; output need not be reassembled.
    """

    def __init__(self) -> None:
        self._head = b""
        self._kind = 0
        self._number = 0
        self._remaining = -1
        """Bytes of the payload still to come; -1 before a header."""
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        at, size = 0, len(chunk)
        while True:
            if self._remaining < 0:
                at = self._read_header(chunk, at)
                if self._remaining < 0:
                    return
            elif at == size:
                return
            part = chunk[at : at + self._remaining]
            at += len(part)
            self._remaining -= len(part)
            if self._kind in _STREAMED:
                if part or not self._remaining:
                    yield self._emit(part)
            else:
                self._buffer += part
                if not self._remaining:
                    whole = bytes(self._buffer)
                    self._buffer.clear()
                    yield self._emit(whole)

    def _emit(self, payload: bytes) -> Frame:
        frame = Frame(self._kind, self._number, payload)
        if not self._remaining:
            self._remaining = -1
        return frame

    def _read_header(self, chunk: bytes, at: int) -> int:
        """Read a header or the start of one. Returns the offset after it."""
        if not self._head and len(chunk) - at >= _HEADER.size:
            self._begin(*_HEADER.unpack_from(chunk, at))
            return at + _HEADER.size
        end = at + _HEADER.size - len(self._head)
        self._head += chunk[at:end]
        if len(self._head) == _HEADER.size:
            self._begin(*_HEADER.unpack(self._head))
            self._head = b""
        return min(end, len(chunk))

    def _begin(self, length: int, kind: int, number: int) -> None:
        if kind not in _FROM_INIT:
            raise FrameError(f"a frame of kind {kind}")
        if length > (MAX_DATA if kind in _STREAMED else _MAX_RESPONSE):
            raise FrameError(f"a frame of {length} bytes")
        self._kind, self._number, self._remaining = kind, number, length
