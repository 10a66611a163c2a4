"""Texts of a trajectory, made fit for a terminal: nothing in them moves its cursor."""

import unicodedata

__all__ = ["fold", "visible"]

LONG_LINES = 24
LONG = 3000
"""A text with more lines or characters is folded to what follows, less than it could have."""
HEAD_LINES, HEAD = 10, 1200
TAIL_LINES, TAIL = 6, 800


def visible(text: str) -> str:
    """The text with every character that a terminal acts on written out as its escape."""
    return "".join(
        char if char.isprintable() or char == "\n" else _written(char)
        for char in text.replace("\r\n", "\n").expandtabs(4)
    )


def fold(text: str, *, full: bool) -> str:
    """The beginning and the end of a long text, and how much stands between them."""
    text = text.rstrip("\n")
    if full or (text.count("\n") < LONG_LINES and len(text) <= LONG):
        return text
    head = "\n".join(text.split("\n", HEAD_LINES)[:HEAD_LINES])[:HEAD]
    rest = text[len(head) :]
    tail = "\n".join(rest.rsplit("\n", TAIL_LINES)[-TAIL_LINES:])[-TAIL:]
    left = len(rest) - len(tail)
    return f"{head}\n… {left:,} of {len(text):,} characters left out, --full shows them …\n{tail}"


def _written(char: str) -> str:
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    if code < 0x100:
        return {"\r": "\\r", "\t": "\\t"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
