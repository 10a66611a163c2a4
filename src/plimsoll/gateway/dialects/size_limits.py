"""Limits on how many things a request holds, whatever its size in bytes.

A few kilobytes of gzip unfold to millions of empty messages. Each of them costs far more time and
memory than the bytes that say it, so the number has a limit of its own.
"""

import re

from plimsoll.gateway.completions import Refusal

__all__ = [
    "MAX_MESSAGES",
    "MAX_PARTS",
    "MAX_STOPS",
    "MAX_TOOLS",
    "MAX_VALUES",
    "check_count",
    "check_values",
]

MAX_VALUES = 500_000
"""JSON values in a body. A value is at least two tokens: no policy reads so many."""
MAX_MESSAGES = 10_000
"""Messages of a conversation, or items of a Responses `input`."""
MAX_PARTS = 4_096
"""Parts, content blocks or tool calls in one list of a message, and blocks of a system prompt."""
MAX_TOOLS = 1_000
"""Tools that a request offers."""
MAX_STOPS = 256
"""Stop sequences. A server compares each of them with every token that it generates."""

_PIECE = 1 << 20
_OPENS_VALUE = (b",", b"{", b"[")
_STRING_OR_VALUE = re.compile(rb'"[^"]*"|[,{\[]')
_QUOTE = ord('"')


def check_values(body: bytes) -> None:
    """Raise `Refusal` if the JSON holds more than `MAX_VALUES` values.

    Nothing is decoded. Most bodies have fewer commas and brackets, those in texts included, and
    only the others are scanned. Both stop at the limit.
    """
    if _rough_count(body) < MAX_VALUES:
        return
    # Without escapes every quote begins or ends a string.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    values = 1
    for found in _STRING_OR_VALUE.finditer(plain):
        if plain[found.start()] != _QUOTE:
            values += 1
            if values > MAX_VALUES:
                raise Refusal(
                    "too_large", f"the body holds more than {MAX_VALUES:,} JSON values; send fewer"
                )


def _rough_count(body: bytes) -> int:
    """Commas and brackets, piece by piece: no other thread runs while a piece is counted."""
    count = 0
    for at in range(0, len(body), _PIECE):
        count += sum(body.count(mark, at, at + _PIECE) for mark in _OPENS_VALUE)
        if count >= MAX_VALUES:
            break
    return count


def check_count(count: int, most: int, where: str) -> None:
    """Raise `Refusal` if the list at `where` has more than `most` elements."""
    if count > most:
        raise Refusal(
            "too_large", f"{where}: {count:,} elements; at most {most:,} are read", param=where
        )
