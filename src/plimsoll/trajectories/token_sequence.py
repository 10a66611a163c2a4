"""The token ids of a conversation in memory: each exchange holds the ids that it
adds to those of its parent.

Ids are compared as text, each followed by a comma. Inference servers send them as JSON, and of a
prompt with tens of thousands of ids only the part after its parent's is ever parsed.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from plimsoll.trajectories.records import Exchange

__all__ = [
    "WIDTH",
    "CommonPrefix",
    "Span",
    "TokenSequence",
    "ids_of_text",
    "length_of",
    "pack_ids",
    "pack_logprobs",
    "spans_of",
    "text_of_ids",
    "unpack_ids",
    "unpack_logprobs",
]

_ids = msgspec.json.Decoder(list[int])
_encode = msgspec.json.Encoder().encode


def text_of_ids(ids: list[int] | msgspec.Raw) -> bytes:
    """The ids as text. Raises `msgspec.DecodeError` for JSON that is not a list of numbers."""
    array = memoryview(_encode(ids) if isinstance(ids, list) else ids)
    text = b"".join((array[1:-1], b",")) if len(array) > 2 else b""
    if b" " in text or b"\n" in text or bytes(array[:1]) != b"[":
        return text_of_ids(_ids.decode(array))
    return text


def ids_of_text(text: bytes) -> list[int]:
    """The ids of a text. Raises `msgspec.DecodeError` if it is not a list of numbers."""
    return _ids.decode(b"[" + text[:-1] + b"]")


class CommonPrefix(msgspec.Struct, frozen=True):
    """The length of the common prefix of a prompt and a sequence, in ids and in bytes of text."""

    ids: int = 0
    bytes: int = 0


class TokenSequence:
    """The ids of an exchange: prompt and answer."""

    __slots__ = ("_answer", "_length", "_parent", "_prompt", "_shared_bytes")

    def __init__(
        self,
        parent: "TokenSequence | None",
        shared_bytes: int,
        prompt: bytes,
        answer: bytes,
        length: int,
    ) -> None:
        self._parent = parent
        self._shared_bytes = shared_bytes
        """The number of bytes of the parent's text that it begins with."""
        self._prompt = prompt
        self._answer = answer
        self._length = length

    def __len__(self) -> int:
        return self._length

    def common(self, text: bytes) -> CommonPrefix:
        """The common prefix of `text` and these ids."""
        at = 0
        for piece in self._pieces():
            if not text.startswith(piece, at):
                at += _common_length(text[at : at + len(piece)], piece)
                # Different ids may begin with the same digits.
                end = text.rfind(b",", 0, at) + 1
                return CommonPrefix(text.count(b",", 0, end), end)
            at += len(piece)
        return CommonPrefix(self._length, at)

    def _pieces(self) -> list[bytes]:
        pieces: list[bytes] = []
        sequence: TokenSequence | None = self
        limit = sys.maxsize
        while sequence is not None and limit > 0:
            own = limit - sequence._shared_bytes
            if own > 0:
                pieces.append(sequence._answer[: max(own - len(sequence._prompt), 0)])
                pieces.append(sequence._prompt[:own])
            limit = min(limit, sequence._shared_bytes)
            sequence = sequence._parent
        pieces.reverse()
        return pieces


def _common_length(left: bytes, right: bytes) -> int:
    """The length of the longest common prefix, by binary search."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


WIDTH = 4
"""The bytes of a packed token id or log probability."""
_SWAPS = sys.byteorder == "big"
_Array = TypeVar("_Array", "array[int]", "array[float]")


def pack_ids(ids: list[int]) -> bytes:
    """Raises `struct.error` for a number that is not an id."""
    return struct.pack(f"<{len(ids)}i", *ids)


def pack_logprobs(logprobs: list[float]) -> bytes:
    """Raises `OverflowError` for a number that does not fit into four bytes."""
    return struct.pack(f"<{len(logprobs)}f", *logprobs)


def unpack_ids(data: bytes) -> "array[int]":
    return _unpacked(array("i"), data)


def unpack_logprobs(data: bytes) -> "array[float]":
    return _unpacked(array("f"), data)


def _unpacked(values: _Array, data: bytes) -> _Array:
    values.frombytes(data)
    if _SWAPS:
        values.byteswap()
    return values


@dataclass(frozen=True, slots=True)
class Span:
    """The first ids that an exchange added to the prompt, or its answer."""

    exchange: Exchange
    is_answer: bool
    length: int

    @property
    def ids(self) -> "array[int]":
        tokens = self.exchange.tokens
        assert tokens is not None
        packed = tokens.answer if self.is_answer else tokens.prompt
        return unpack_ids(packed[: self.length * WIDTH])


def length_of(exchange: Exchange) -> int:
    """The number of tokens of the prompt and answer."""
    tokens = exchange.tokens
    if tokens is None:
        return 0
    return tokens.kept + (len(tokens.prompt) + len(tokens.answer)) // WIDTH


def spans_of(exchanges: Sequence[Exchange], exchange: Exchange) -> list[Span]:
    """All tokens of an exchange in order: those kept from its parent, then its own."""
    spans: list[Span] = []
    limit = sys.maxsize
    while (tokens := exchange.tokens) is not None:
        own = max(limit - tokens.kept, 0)
        prompt = min(len(tokens.prompt) // WIDTH, own)
        answer = min(len(tokens.answer) // WIDTH, own - prompt)
        if answer:
            spans.append(Span(exchange, True, answer))
        if prompt:
            spans.append(Span(exchange, False, prompt))
        limit = min(limit, tokens.kept)
        if limit == 0 or exchange.parent < 0:
            break
        exchange = exchanges[exchange.parent]
    spans.reverse()
    return spans
