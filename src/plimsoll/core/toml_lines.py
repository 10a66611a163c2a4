"""Line numbers of the keys of a TOML text, for error messages."""

import re
from collections.abc import Sequence

__all__ = ["KeyPath", "line_of", "show_key"]

KeyPath = tuple[str | int, ...]
"""The path from the root to a key; an int is an index into a list or an array of tables."""

KEY = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
DOTTED = rf"{KEY}(?:[ \t]*\.[ \t]*{KEY})*"
STATEMENT = re.compile(
    rf"[ \t]*(?:(?P<array>\[\[)|(?P<table>\[))?[ \t]*(?P<key>{DOTTED})[ \t]*(?:\]\]?|(?P<set>=))"
)
VALUE_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*|[\[{]|[\]}]|\n|[^\"'#\[\]{}\n]+",
    re.DOTALL,
)
PART = re.compile(KEY)


def show_key(path: Sequence[str | int]) -> str:
    """Format a key path: `steps[1].agent.timeout_sec`."""
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return shown.removeprefix(".")


def line_of(text: str, path: KeyPath) -> int | None:
    """Return the line of a key, or of the innermost table or key around it that has one."""
    lines = _index(text)
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def _index(text: str) -> dict[KeyPath, int]:
    """Map all table headers and keys of a valid TOML text to their lines."""
    lines: dict[KeyPath, int] = {}
    arrays: dict[KeyPath, int] = {}
    table: KeyPath = ()
    text = text.replace("\r\n", "\n")
    position, line = 0, 1
    while position < len(text):
        match = STATEMENT.match(text, position)
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        if match:
            key = _parts(match["key"])
            if match["array"]:
                table = _in_arrays(key[:-1], arrays) + key[-1:]
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            elif match["table"]:
                table = _in_arrays(key, arrays)
            else:
                end = _end_of_value(text, match.end())
            path = (*table, *key) if match["set"] else table
            # `a.b.c = 1` also defines a and a.b, unless they are defined earlier.
            for depth in range(1, len(path) + 1):
                lines.setdefault(path[:depth], line)
        line += text.count("\n", position, end + 1)
        position = end + 1
    return lines


def _parts(key: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in PART.findall(key))


def _in_arrays(key: KeyPath, arrays: dict[KeyPath, int]) -> KeyPath:
    """A header refers to the newest element of each array of tables on its path."""
    path: KeyPath = ()
    for part in key:
        path = (*path, part)
        if path in arrays:
            path = (*path, arrays[path])
    return path


def _end_of_value(text: str, position: int) -> int:
    """Return the end of the line on which a value ends; lists and strings may span lines."""
    depth = 0
    while position < len(text):
        match = VALUE_TOKEN.match(text, position)
        if match is None:
            break
        token = match[0]
        if token == "\n" and depth == 0:
            return position
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        position = match.end()
    return len(text)
