"""Packed token ids and log probabilities, four bytes each, and the spans that an exchange is made
of.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from plimsoll.trajectories.records import Exchange

__all__ = [
    "WIDTH",
    "Span",
    "length_of",
    "pack_ids",
    "pack_logprobs",
    "spans_of",
    "unpack_ids",
    "unpack_logprobs",
]

WIDTH = 4
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
