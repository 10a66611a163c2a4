"""Folding of long texts of a trajectory."""

__all__ = ["fold"]

LONG_LINES = 24
LONG = 3000
"""A text with more lines or characters is folded to what follows, less than it could have."""
HEAD_LINES, HEAD = 10, 1200
TAIL_LINES, TAIL = 6, 800


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
