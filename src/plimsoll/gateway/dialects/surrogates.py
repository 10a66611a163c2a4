"""Halves of characters in JSON.

Programs in JavaScript cut texts between the two halves of a character, and write the half that is
left as an escape. No server takes it; an agent that has one in its history would get no answer
any more.
"""

import re

__all__ = ["without_halves"]

_HALF = re.compile(
    rb"\\u[dD](?:"  # in one place, so that this is what is searched for
    rb"[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"  # a first without a second
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"  # and the other way
)
_INSTEAD = rb"\\ufffd"

_BACKSLASH = rb"\\"
_HIDDEN = b"\0\0"
"""What stands for an escaped backslash meanwhile, so that every other one begins an escape. No
JSON has such bytes."""


def without_halves(body: bytes) -> bytes:
    """The JSON with a mark in place of each half; the same object where there is none.

    Whatever the body is made of, it is gone through a few times and no more: this may be any
    bytes, and everybody waits meanwhile.
    """
    if b"\0" in body:
        return body
    mended, found = _HALF.subn(_INSTEAD, body.replace(_BACKSLASH, _HIDDEN))
    return mended.replace(_HIDDEN, _BACKSLASH) if found else body
