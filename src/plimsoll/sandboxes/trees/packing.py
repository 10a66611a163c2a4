"""Packs a file or a folder into a stream.

Devices, sockets and pipes are skipped and listed by name. Names are not escaped here.
"""

# Works on open folders and on bytes, which Path does not.
# ruff: noqa: PTH114, PTH115, PTH116, PTH118, PTH123

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from io import FileIO
from typing import IO

from plimsoll.sandboxes.trees.stream import (
    CHUNK,
    LONGEST_NAME,
    LONGEST_PATH,
    TOO_LONG,
    TreeError,
    stays_inside,
    too_long,
)

__all__ = ["pack", "pack_unless_link"]

_NOT_COPIED = "neither a file, a folder nor a link"


def pack(source: str, out: IO[bytes], ignored: Callable[[str], bool] | None = None) -> None:
    """Write the file or folder `source` to `out`, then a last record that proves it complete.

    `ignored` tells which names, relative to the folder, are skipped.
    """
    try:
        root = os.stat(source)
    except OSError as error:
        raise TreeError(f"{source}: {error.strerror}") from None
    packer = _Packer(out)
    if stat.S_ISDIR(root.st_mode):
        packer.entry("d", "", root)
        for name, path, info in _walk(source):
            if ignored is None or not ignored(name):
                packer.pack_entry(name, path, info)
    elif stat.S_ISREG(root.st_mode):
        packer.file("", source, extra=posixpath.basename(source))
    else:
        raise TreeError(f"{source}: neither a file nor a folder")
    out.write(b"e 0 0 0 0 0 0 0\n")
    out.flush()


def pack_unless_link(source: str, out: IO[bytes]) -> None:
    """Like `pack`, but an untrusted link is followed only if it stays in its folder."""
    if os.path.islink(source) and not stays_inside(os.readlink(source), 0):
        raise TreeError(f"{source}: a link to {os.readlink(source)}, which is not followed")
    pack(source, out)


def _walk(source: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """All entries below a folder. A folder whose name is too long is not entered."""
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(source, folder)) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                info = entry.stat(follow_symlinks=False)
                name = posixpath.join(folder, entry.name)
                yield name, entry.path, info
                if stat.S_ISDIR(info.st_mode) and not too_long(name):
                    pending.append(name)


class _Packer:
    """Writes the records of one tree."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._named: dict[tuple[int, int, int, int], str] = {}
        """The first names of packed files with several hard links, by file identity."""

    def pack_entry(self, name: str, path: str, info: os.stat_result) -> None:
        if too_long(name):
            self.entry("s", name[:LONGEST_PATH], info, extra=TOO_LONG)
        elif stat.S_ISDIR(info.st_mode):
            self.entry("d", name, info)
        elif stat.S_ISLNK(info.st_mode):
            self.entry("l", name, info, extra=os.readlink(path))
        elif stat.S_ISREG(info.st_mode):
            self.file(name, path, flags=os.O_NOFOLLOW)
        else:
            self.entry("s", name, info, extra=_NOT_COPIED)

    def file(self, name: str, path: str, *, extra: str = "", flags: int = 0) -> None:
        """Pack a file. It is checked again once open: the path may have changed since `stat`."""
        flags |= os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags), "rb", buffering=0) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                self.entry("s", name, info, extra=_NOT_COPIED)
                return
            if name and info.st_nlink > 1:
                key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
                first = self._named.setdefault(key, name)
                if first != name:
                    self.entry("k", name, info, extra=first)
                    return
            if info.st_blocks * 512 < info.st_size:
                self.entry("h", name, info, size=info.st_size, extra=extra)
                self._pieces(file, path, info.st_size)
            else:
                self.entry("f", name, info, size=info.st_size, extra=extra)
                self._content(file, path, info.st_size)

    def _pieces(self, file: FileIO, path: str, size: int) -> None:
        at = 0
        while at < size:
            try:
                start = min(os.lseek(file.fileno(), at, os.SEEK_DATA), size)
                at = min(os.lseek(file.fileno(), start, os.SEEK_HOLE), size)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    break
                start, at = at, size  # its file system does not report holes
            if at > start:
                self._out.write(f"{start} {at - start}\n".encode())
                os.lseek(file.fileno(), start, os.SEEK_SET)
                self._content(file, path, at - start)
        self._out.write(b"0 0\n")

    def _content(self, file: FileIO, path: str, left: int) -> None:
        while left:
            chunk = file.read(min(CHUNK, left))
            if not chunk:
                raise TreeError(f"{path}: it shrank while it was read")
            self._out.write(chunk)
            left -= len(chunk)

    def entry(
        self, kind: str, name: str, info: os.stat_result, *, size: int = 0, extra: str = ""
    ) -> None:
        named, more = os.fsencode(name), os.fsencode(extra)
        if max(len(named), len(more)) > LONGEST_NAME:
            raise TreeError(f"{name[:80]}…: the name is too long")
        mode, mtime = stat.S_IMODE(info.st_mode), info.st_mtime_ns
        numbers = f"{mode:o} {info.st_uid} {info.st_gid} {mtime} {size} {len(named)} {len(more)}"
        self._out.write(f"{kind} {numbers}\n".encode() + named + more)
