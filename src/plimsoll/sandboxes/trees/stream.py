"""The byte stream that a tree is packed into.

The stream is a sequence of records. Each has a line of eight fields,

    KIND MODE(octal) UID GID MTIME_NS SIZE NAMELEN EXTRALEN

then the name, relative to the root and empty for the root itself, then the extra bytes, then
the content. Names are bytes.

| kind | entry | extra bytes |
| --- | --- | --- |
| `d` | a folder | |
| `f` | a file with SIZE bytes of content | its base name, if it is the root |
| `h` | a file of SIZE bytes with holes | as for `f` |
| `k` | another name (hard link) of an earlier file | the name of that file |
| `l` | a symbolic link | its target |
| `s` | a skipped entry | the reason |
| `e` | the end of the stream | |

The content of a file with holes is its data without the holes: for each piece a line
`OFFSET LENGTH` and LENGTH bytes, in ascending order, then the line `0 0`. A sparse file therefore
takes no room in the stream, nor at its destination.

The init of containers writes and reads the same format in C, with the same messages.
"""

import os
from typing import IO, NamedTuple

__all__ = [
    "CHUNK",
    "LONGEST_NAME",
    "LONGEST_PATH",
    "MAX_LINE",
    "TOO_LONG",
    "Record",
    "TreeError",
    "read_record",
    "stays_inside",
    "too_long",
]

CHUNK = 1 << 20
"""Bytes that are read at once."""
MAX_LINE = 256
"""The most bytes of a header line."""
LONGEST_NAME = 64 * 1024
"""The most bytes of a record's name, and of its extra bytes."""
LONGEST_PATH = 3072
"""The most bytes of a name that is copied. A file with a longer one could not be opened by its
path once its folder is below another."""
TOO_LONG = "its path is too long"


class TreeError(Exception):
    """A tree that cannot be packed or unpacked. The text has the reason."""


class Record(NamedTuple):
    """The header of one entry."""

    kind: str
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int
    name: str
    extra: str


def read_record(stream: IO[bytes]) -> Record:
    """Read the next header, with its name and extra bytes."""
    line = stream.readline(MAX_LINE)
    if not line.endswith(b"\n"):
        raise TreeError("the transfer broke off" if len(line) < MAX_LINE else "a line is too long")
    kind, mode, *numbers = line.decode("ascii").split()
    uid, gid, mtime, size, named, more = map(int, numbers)
    if size < 0 or not 0 <= named <= LONGEST_NAME or not 0 <= more <= LONGEST_NAME:
        raise TreeError("the transfer is not readable: a length is out of bounds")
    both = stream.read(named + more)
    if len(both) < named + more:
        raise TreeError("the transfer broke off")
    name, extra = os.fsdecode(both[:named]), os.fsdecode(both[named:])
    return Record(kind, int(mode, 8), uid, gid, mtime, size, name, extra)


def too_long(name: str) -> bool:
    """Whether a name, relative to the root, is too long to be copied."""
    return len(name) > LONGEST_PATH or len(os.fsencode(name)) > LONGEST_PATH


def stays_inside(to: str, depth: int) -> bool:
    """Whether a link, `depth` folders below the root of the tree, stays below that root.

    Steps upwards are allowed only at its beginning, where the parents are real folders: after a
    name they would start from the target of another link.
    """
    steps = to.split("/")
    ups = 0
    while ups < len(steps) and steps[ups] == "..":
        ups += 1
    return not to.startswith("/") and ups <= depth and ".." not in steps[ups:]
