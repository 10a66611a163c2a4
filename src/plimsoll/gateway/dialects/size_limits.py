"""Limits on the number of elements in a request, independent of its size in bytes.

A few kilobytes of gzip expand to millions of empty messages. Each costs far more time and memory
than its bytes, so the number has a limit of its own.
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
"""JSON values in a body. A value takes at least two tokens: no policy can read more."""
MAX_MESSAGES = 10_000
"""Messages of a conversation, or items of a Responses `input`."""
MAX_PARTS = 4_096
"""Parts, content blocks or tool calls in one list of a message, and blocks of a system prompt."""
MAX_TOOLS = 1_000
"""Tools of a request."""
MAX_STOPS = 256
"""Stop sequences. A server compares each of them with every generated token."""

_PIECE = 1 << 20
_OPENS_VALUE = (b",", b"{", b"[")
_STRING_OR_VALUE = re.compile(rb'"[^"]*"|[,{\[]')
_QUOTE = ord('"')


def check_values(body: bytes) -> None:
    """Raise `Refusal` if the JSON holds more than `MAX_VALUES` values.

    Nothing is decoded. A body with fewer commas and brackets, including those in texts, passes;
    only the others are scanned. Both passes stop at the limit.
    """
    if _rough_count(body) < MAX_VALUES:
        return
    # Without escapes, every quote begins or ends a string.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    values = 1
    for found in _STRING_OR_VALUE.finditer(plain):
        if plain[found.start()] != _QUOTE:
            values += 1
            if values > MAX_VALUES:
                raise Refusal(
                    "too_large", f"the body has more than {MAX_VALUES:,} JSON values; send fewer"
                )


def _rough_count(body: bytes) -> int:
    """The number of commas and brackets. Counts in pieces, because `count` holds the GIL."""
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
            "too_large", f"{where}: {count:,} elements; the maximum is {most:,}", param=where
        )
