"""The frames that go between Plimsoll and a sandbox's init, over one byte stream.

A frame is `u32 length, u8 kind, u32 number`, little endian, then the payload. A request's
number is chosen here and never used again; a tunnel's is chosen by init.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from plimsoll.core.text import safe_name

__all__ = [
    "FIRST_TUNNEL",
    "LARGEST_DATA",
    "LARGEST_REQUEST",
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

LARGEST_DATA = 65_536
"""Bytes in one frame of data."""
LARGEST_REQUEST = 64 << 20
WINDOW = 262_144
"""Bytes of data under one number that the other side may not have consumed yet."""
FIRST_TUNNEL = 1 << 31
_LARGEST_ANSWER = 1 << 20
_HEADER = struct.Struct("<IBI")
_COUNT = struct.Struct("<I")


class Kind(IntEnum):
    """What a frame is; those from 64 on are init's."""

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
    """The host has consumed so many bytes of a tunnel."""
    HANG_UP = 11
    """The host is done with a tunnel, or with a listening socket."""
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
    """What came from a sandbox's init is no frame, or makes no sense."""


class Frame(NamedTuple):
    """A frame, or as much of an OUT or ERR frame as has arrived."""

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
            raise FrameError("a field without its length")
        (length,) = _COUNT.unpack_from(payload, at)
        at = start + length
        if at > len(payload):
            raise FrameError("a field is longer than its frame")
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
    """How a request ended, as init says; what does not apply to it is not set."""

    exit: int | None = None
    signal: int | None = None
    error: str = ""
    """Why it could not be done."""
    nouser: str = ""
    """Which user or group there is not."""
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
    removed: int = 0


_TEXTS = frozenset({"error", "nouser", "doubt"})
_NUMBERS = frozenset(RequestEnd.__dataclass_fields__) - _TEXTS - {"skipped"}


def read_request_end(payload: bytes) -> RequestEnd:
    """Read the payload of an END. Keys that are not known are passed over."""
    fields = read_fields(payload)
    said: dict[str, Any] = {}
    skipped: list[str] = []
    for key, value in zip(fields[::2], fields[1::2], strict=False):
        name = key.decode("ascii", "replace")
        if name in _NUMBERS and value:
            said[name] = _number(value)
        elif name in _TEXTS:
            said[name] = _text(value)
        elif name == "skipped":
            skipped.append(_text(value))
    return RequestEnd(**said, skipped=tuple(skipped))


def _number(value: bytes) -> int:
    if not value.isdigit() or len(value) > 20:
        raise FrameError("not a number")
    return int(value)


def _text(value: bytes) -> str:
    """Words of init for a person; a file's name in them may hold any byte."""
    return safe_name(value.decode("utf-8", "backslashreplace"))


class Decoder:
    """Takes chunks cut anywhere, gives frames. Holds less than one frame that is not data.

    What of an OUT or ERR frame is there is given at once, in as many pieces as the chunks
    make of it: the pieces of output need not be joined.
    """

    def __init__(self) -> None:
        self._head = b""
        self._kind = 0
        self._number = 0
        self._left = -1
        """Bytes of the payload still to come; -1 where a header is due."""
        self._held = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        at, size = 0, len(chunk)
        while True:
            if self._left < 0:
                at = self._read_header(chunk, at)
                if self._left < 0:
                    return
            elif at == size:
                return
            piece = chunk[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if self._kind in _STREAMED:
                if piece or not self._left:
                    yield self._given(piece)
            else:
                self._held += piece
                if not self._left:
                    whole = bytes(self._held)
                    self._held.clear()
                    yield self._given(whole)

    def _given(self, payload: bytes) -> Frame:
        frame = Frame(self._kind, self._number, payload)
        if not self._left:
            self._left = -1
        return frame

    def _read_header(self, chunk: bytes, at: int) -> int:
        """Read a header, or the beginning of one; where what follows it begins."""
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
        if length > (LARGEST_DATA if kind in _STREAMED else _LARGEST_ANSWER):
            raise FrameError(f"a frame of {length} bytes")
        self._kind, self._number, self._left = kind, number, length
