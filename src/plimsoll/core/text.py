"""Makes untrusted text (of agents, tests, tasks, graders, servers) safe to store and to show.

Such text may contain lone surrogates (Python also reads file names that are not UTF-8 as these),
control characters, escape sequences, line breaks in file names, and marks that change the writing
direction. No encoder accepts a lone surrogate, and a terminal acts on the others. All text that
goes to a file, to JSON, to the ledger, to a message or to a terminal passes one of these functions.
They escape unsafe characters, so that different texts stay visibly different.
"""

import re
import unicodedata

__all__ = [
    "DECODE_ERRORS",
    "replace_lone_surrogates",
    "safe_line",
    "safe_name",
    "safe_names",
    "safe_text",
]

DECODE_ERRORS = (ValueError, RecursionError)
"""The errors of decoding untrusted JSON. All errors of msgspec and of the standard library for
invalid JSON, other types and invalid UTF-8 are a ValueError; deep nesting is a RecursionError."""

_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")


def safe_text(text: str) -> str:
    """Escape every unprintable character except line breaks."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else _escape(char)
        for char in text.replace("\r\n", "\n").expandtabs(4)
    )


def safe_line(text: str, max_length: int | None = None) -> str:
    """One line of safe text: line breaks and tabs become spaces, cut to `max_length`."""
    text = text.strip()
    if not text.isprintable():
        text = safe_text(_BREAKS.sub(" ", text))
    return text if max_length is None or len(text) <= max_length else text[: max_length - 1] + "…"


def safe_name(name: str) -> str:
    """A safe file name or key in one line: line breaks and tabs are escaped too."""
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else _escape(char) for char in name)


def safe_names(names: list[str]) -> list[str]:
    """Safe names, still distinct: names that would collide get a number."""
    found: dict[str, None] = {}
    for name in names:
        safe, number = safe_name(name), 1
        while (unique := safe if number == 1 else f"{safe} ({number})") in found:
            number += 1
        found[unique] = None
    return list(found)


def _escape(char: str) -> str:
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:"  # once, so that the search looks for this prefix
    rb"[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"  # a high one without a low one
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"  # and the reverse
)
_REPLACEMENT = rb"\\ufffd"

_BACKSLASH = rb"\\"
_PLACEHOLDER = b"\0\0"
"""Placeholder of an escaped backslash, so that every other backslash begins an escape. Valid JSON
has no such bytes."""


def replace_lone_surrogates(body: bytes) -> bytes:
    """Replace each lone surrogate escape in JSON by U+FFFD. Returns `body` itself if there is none.

    JavaScript programs split strings inside a surrogate pair. Servers refuse the result, and an
    agent with one in its history would get no more answers. The cost is linear in the body length.
    """
    if b"\0" in body:
        return body
    replaced, found = _LONE_SURROGATE.subn(_REPLACEMENT, body.replace(_BACKSLASH, _PLACEHOLDER))
    return replaced.replace(_PLACEHOLDER, _BACKSLASH) if found else body
