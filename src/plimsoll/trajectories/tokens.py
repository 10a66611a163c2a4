"""Token ids and log probabilities as they are written: packed, four bytes each."""

import struct
import sys
from array import array
from typing import TypeVar

__all__ = ["WIDTH", "pack_ids", "pack_logprobs", "unpack_ids", "unpack_logprobs"]

WIDTH = 4
_SWAPS = sys.byteorder == "big"
_Array = TypeVar("_Array", "array[int]", "array[float]")


def pack_ids(ids: list[int]) -> bytes:
    """Raises `struct.error` for a number that is no id."""
    return struct.pack(f"<{len(ids)}i", *ids)


def pack_logprobs(logprobs: list[float]) -> bytes:
    """Raises `OverflowError` for a number that four bytes cannot hold."""
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
