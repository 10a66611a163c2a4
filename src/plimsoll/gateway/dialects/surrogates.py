"""Halves of characters in JSON.

Programs in JavaScript cut texts between the two halves of a character, and write the half that is
left as an escape. No server takes it; an agent that has one in its history would get no answer
any more.
"""

import re

__all__ = ["without_halves"]

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole character
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})"  # a half
    rb"|.)",
    re.DOTALL,
)
_INSTEAD = rb"\ufffd"


def without_halves(body: bytes) -> bytes:
    """The JSON with a mark in place of each half; the same object where there is none."""
    found = any(escape[1] for escape in _ESCAPE.finditer(body))
    return _ESCAPE.sub(lambda it: _INSTEAD if it[1] else it[0], body) if found else body
