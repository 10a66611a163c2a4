"""Makes untrusted text (of agents, tests, tasks, graders, servers) safe to store and to show.

Such text may hold anything: halves of characters (lone surrogates, which is also how Python
reads a file name that is not UTF-8), control characters, escape sequences, line breaks in a file
name, marks that turn the direction of writing. No encoder takes a half, and a terminal acts on
the others. Everything that goes to a file, to JSON, to the ledger, to a message or to a terminal
goes through one of the functions here. They write an unsafe character as its escape, so that two
different texts stay different to the eye.

What reading JSON raises that somebody else wrote: a policy, an agent, a server.
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

_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")


def safe_text(text: str) -> str:
    """Escape every unprintable character except line breaks."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else _escape(char)
        for char in text.replace("\r\n", "\n").expandtabs(4)
    )


def safe_line(text: str, most: int | None = None) -> str:
    """One line of safe text: line breaks and tabs become spaces, `most` characters are kept."""
    text = text.strip()
    if not text.isprintable():
        text = safe_text(_BREAKS.sub(" ", text))
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def safe_name(name: str, most: int | None = None) -> str:
    """A safe file name or key in one line: line breaks and tabs are escaped too."""
    if not name.isprintable():
        name = "".join(char if char.isprintable() else _escape(char) for char in name)
    return name if most is None or len(name) <= most else name[: most - 1] + "…"


def safe_names(names: list[str]) -> list[str]:
    """Safe names, still distinct: names that would collide get a number."""
    found: dict[str, None] = {}
    for name in names:
        safe, number = safe_name(name), 1
        while (told := safe if number == 1 else f"{safe} ({number})") in found:
            number += 1
        found[told] = None
    return list(found)


def _escape(char: str) -> str:
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as Python reads a file's name
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_HALF = re.compile(
    rb"\\u[dD](?:"  # in one place, so that this is what is searched for
    rb"[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"  # a first without a second
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"  # and the other way
)
_INSTEAD = rb"\\ufffd"

_BACKSLASH = rb"\\"
_HIDDEN = b"\0\0"
"""Stands for an escaped backslash meanwhile, so that every other one begins an escape. No JSON
has such bytes."""


def replace_lone_surrogates(body: bytes) -> bytes:
    """Replace each lone surrogate escape in JSON by U+FFFD. Returns `body` itself if there is none.

    JavaScript programs cut strings between the two halves of a surrogate pair. Servers refuse the
    result, and an agent with one in its history would get no answer any more. The cost is linear
    in the length of the body.
    """
    if b"\0" in body:
        return body
    mended, found = _HALF.subn(_INSTEAD, body.replace(_BACKSLASH, _HIDDEN))
    return mended.replace(_HIDDEN, _BACKSLASH) if found else body


DECODE_ERRORS = (ValueError, RecursionError)
"""It is no JSON, not what was expected, or not UTF-8: all errors of msgspec and of the standard
library are a ValueError. Or it is nested too deeply, which neither of them counts among those."""
