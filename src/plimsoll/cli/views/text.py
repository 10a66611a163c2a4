"""Numbers, durations, commands and untrusted texts for people."""

import shlex

from plimsoll import __version__
from plimsoll.core.text import safe_line

__all__ = ["NONE", "byte_size", "command", "count", "duration", "figure", "plain", "product"]

NONE = "–"
"""Stands for a missing figure."""


def product() -> str:
    """The name and the version, as the first line of a command shows them."""
    return f"plimsoll {'.'.join(__version__.split('.')[:2])}"


def command(*words: object) -> str:
    """A `plimsoll` command that can be pasted into a shell."""
    return shlex.join(("plimsoll", *map(str, words)))


def plain(text: str) -> str:
    """Text from a task or its grader, as one line that cannot move a terminal's cursor."""
    return safe_line(text)


def figure(value: float | None) -> str:
    """A reward. A fraction is never rounded to a whole number."""
    if value is None:
        return NONE
    short = f"{value:.2f}"
    return short if float(short) == value or not float(short).is_integer() else f"{value:.6g}"


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 step`, `2 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def byte_size(size: int) -> str:
    """A number of bytes with a decimal unit."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"
