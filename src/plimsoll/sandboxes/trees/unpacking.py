"""Unpacks a stream into a file or a folder.

The stream is not trusted: no name leaves the target, no link in the target is followed, and no
link that points out of the target is made.
"""

# Works on open folders and on bytes, which Path does not.
# ruff: noqa: PTH102, PTH112, PTH123

import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from plimsoll.sandboxes.trees.stream import (
    CHUNK,
    MAX_LINE,
    TOO_LONG,
    Record,
    TreeError,
    read_record,
    stays_inside,
    too_long,
)

__all__ = ["Rules", "unpack"]

_HOLES = 64
"""This many bytes of holes count as one byte towards the limit."""
_MAX_SKIPPED_SHOWN = 20
_STAY_OPEN = 16
"""One of this many parent folders of an entry stays open."""
_SHOWN = 120
"""The most characters shown of a skipped name."""


class _OpenFolder(NamedTuple):
    """An open folder of the target, with its depth."""

    name: str
    depth: int
    descriptor: int


@dataclass(frozen=True)
class Rules:
    """Limits, modes and owners of an unpacked tree."""

    limit: int | None = None
    """The most bytes. Holes count for a small part of their size: they take no room here, but
    would in a copy that does not preserve them."""
    entries: int | None = None
    """The most files, folders and links."""
    as_image: bool = False
    """Unpack as part of an image: links may point anywhere, modes are exact. An existing file in
    place of a folder is an error instead of being replaced."""
    keep_owners: bool = False
    owner: tuple[int, int] | None = None
    mode: int | None = None
    """Overrides the mode of every file and folder."""


def unpack(stream: IO[bytes], target: str, rules: Rules | None = None) -> dict[str, Any]:
    """Unpack the stream of `pack` into `target`. Returns counts and the skipped entries.

    A file goes to the path `target`, or into it if it is a folder or ends with a slash.
    """
    unpacker = _Unpacker(target, rules or Rules())
    try:
        while True:
            record = read_record(stream)
            if record.kind == "e":
                return unpacker.summary()
            unpacker.take(record, stream)
    except (ValueError, OverflowError) as error:
        raise TreeError(f"the transfer is not readable: {error}") from None
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else target
        raise TreeError(f"{where}: {error.strerror}") from None
    finally:
        unpacker.close()


class _Unpacker:
    """Unpacks one tree: the open target folder, and the remaining limits."""

    def __init__(self, target: str, rules: Rules) -> None:
        self._target = target
        self._rules = rules
        self._left = rules.limit
        self._span_left = None if rules.limit is None else rules.limit * _HOLES
        self._entries_left = rules.entries
        self._root: int | None = None
        self._open: list[_OpenFolder] = []
        """Open folders on the path of the last entry."""
        self._files = 0
        self._bytes = 0
        self._skipped: list[str] = []
        self._skips = 0
        self._deferred_modes: list[tuple[str, int]] = []

    def take(self, record: Record, stream: IO[bytes]) -> None:
        kind, name = record.kind, record.name
        if name == "":
            self._begin(record, stream)
            return
        parts = name.split("/")
        if kind == "s" and self._root is not None:
            self._skip(name, record.extra)
            return
        if self._root is None or any(p in ("", ".", "..") or "\0" in p for p in parts):
            raise TreeError(f"{name[:200]!r} leaves the target")
        if kind not in ("d", "f", "h", "k", "l"):
            raise TreeError(f"the transfer is not readable: a record of kind {kind!r}")
        if self._entries_left is not None:
            self._entries_left -= 1
            if self._entries_left < 0:
                raise TreeError(f"more than {self._rules.entries:,} files and folders")
        self._reserve(record)
        if too_long(name):
            for _ in self._content(record, stream):
                pass  # skip it: the next record follows
            self._skip(name, TOO_LONG)
            return
        parent = self._open_parent("/".join(parts[:-1]))
        if kind == "d":
            self._make_folder(parent, parts[-1], record)
            self._defer_mode(name, record)
        elif kind == "k":
            self._make_hard_link(parent, parts, record)
        elif kind == "l":
            self._make_symlink(parent, parts, record)
        else:
            self._make_file(parent, parts[-1], record, stream)

    def _begin(self, record: Record, stream: IO[bytes]) -> None:
        """Take the root entry, and open or create the target for it."""
        if self._root is not None or record.kind not in ("d", "f", "h"):
            raise TreeError("the transfer has no root, or two")
        kind, target = record.kind, self._target
        if kind != "d" and (target.endswith("/") or os.path.isdir(target)):
            target = posixpath.join(target, posixpath.basename(record.extra))
        folder = target if kind == "d" else posixpath.dirname(target) or "/"
        self._make_parents(folder)
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if kind != "d":
            self._reserve(record)
            self._make_file(self._root, posixpath.basename(target), record, stream)

    def _make_parents(self, folder: str) -> None:
        """Create the target and its missing parents, with the same owner."""
        missing: list[str] = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = posixpath.dirname(folder.rstrip("/")) or "/"
        for path in reversed(missing):
            os.mkdir(path, 0o755)
            if self._rules.owner:
                os.chown(path, *self._rules.owner)

    def _open_parent(self, folder: str) -> int:
        """Open a folder of the target. Links on the way are replaced, never followed.

        The search starts at the nearest parent that is still open: the tree of an agent may be
        very deep, and a walk from the target to each folder would take quadratic time.
        """
        assert self._root is not None
        while self._open and not f"{folder}/".startswith(f"{self._open[-1].name}/"):
            os.close(self._open.pop().descriptor)
        above = self._open[-1] if self._open else _OpenFolder("", 0, self._root)
        if above.name == folder:
            return above.descriptor
        name, depth, at = above
        for part in folder[len(name) :].strip("/").split("/"):
            self._make_folder(at, part, None)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            deeper = os.open(part, flags, dir_fd=at)
            if depth % _STAY_OPEN:
                os.close(self._open.pop().descriptor)
            name, depth, at = posixpath.join(name, part), depth + 1, deeper
            self._open.append(_OpenFolder(name, depth, at))
        return at

    def _make_folder(self, parent: int, name: str, record: Record | None) -> None:
        """Create a folder if it is missing; with a record, set its mode and owner."""
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                if self._rules.as_image:
                    raise TreeError(
                        f"{name}: a file or a link is in the place of the folder"
                    ) from None
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, 0o755, dir_fd=parent)
            elif record is None:
                return
        if record is not None:
            self._set_owner(record, lambda owner: os.chown(name, *owner, dir_fd=parent))
            # Writable and searchable for its owner, so that it can be filled.
            os.chmod(name, self._mode(record) | 0o700, dir_fd=parent)

    def _defer_mode(self, name: str, record: Record) -> None:
        """Remember the exact mode of an image's folder, to set it once the folder is filled."""
        mode = self._mode(record)
        if self._rules.as_image and mode & 0o700 != 0o700:
            self._deferred_modes.append((name, mode))

    def _mode(self, record: Record) -> int:
        if self._rules.mode is not None:
            return self._rules.mode
        return record.mode & (0o7777 if self._rules.as_image else 0o777)

    def _set_owner(self, record: Record, chown: Callable[[tuple[int, int]], None]) -> None:
        owner = self._rules.owner
        if owner is None and self._rules.keep_owners:
            owner = (record.uid, record.gid)
        if owner is not None:
            try:
                chown(owner)
            except OSError as error:
                raise TreeError(
                    f"the owner cannot be set to user {owner[0]}: {error.strerror}; "
                    "without root a sandbox has only one user"
                ) from None

    def _make_file(self, parent: int, name: str, record: Record, stream: IO[bytes]) -> None:
        self._remove_existing(parent, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        with open(descriptor, "wb", buffering=0) as file:
            for offset, chunk in self._content(record, stream):
                if offset is not None:
                    file.seek(offset)
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) :]
            if record.kind == "h":
                os.ftruncate(descriptor, record.size)
            self._set_owner(record, lambda owner: os.fchown(descriptor, *owner))
            # Readable for its owner, so that a later download can read it.
            os.fchmod(descriptor, self._mode(record) | (0 if self._rules.as_image else 0o400))
            os.utime(descriptor, ns=(record.mtime, record.mtime))
        self._files += 1

    def _content(self, record: Record, stream: IO[bytes]) -> Iterator[tuple[int | None, bytes]]:
        """The content of a file in chunks, with an offset if it does not follow the last chunk."""
        if record.kind == "f":
            for chunk in self._take(record.size, stream):
                yield None, chunk
        if record.kind != "h":
            return
        end = 0
        while True:
            line = stream.readline(MAX_LINE)
            if not line.endswith(b"\n"):
                raise TreeError("the transfer broke off")
            offset, length = map(int, line.decode("ascii").split())
            if not length:
                return
            if length < 0 or offset < end or offset + length > record.size:
                raise TreeError("the transfer is not readable: a piece is out of bounds")
            end = offset + length
            self._count(length)
            at: int | None = offset
            for chunk in self._take(length, stream):
                yield at, chunk
                at = None

    def _reserve(self, record: Record) -> None:
        """Count a file against the limits before it is created."""
        if record.kind == "f":
            self._count(record.size)
        elif record.kind == "h" and self._span_left is not None:
            self._span_left -= record.size
            if self._span_left < 0:
                raise TreeError(
                    f"more than {self._rules.limit:,} bytes: {record.name[:200]} has "
                    f"{record.size:,} with its holes"
                )

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise TreeError(f"more than {self._rules.limit:,} bytes")

    def _take(self, size: int, stream: IO[bytes]) -> Iterator[bytes]:
        while size:
            chunk = stream.read(min(CHUNK, size))
            if not chunk:
                raise TreeError("the transfer broke off")
            size -= len(chunk)
            yield chunk

    def _make_hard_link(self, parent: int, parts: list[str], record: Record) -> None:
        """Hard-link an earlier file. Its path is resolved without following links."""
        name, before = parts[-1], record.extra.split("/")
        if any(p in ("", ".", "..") or "\0" in p for p in before):
            raise TreeError(f"{record.extra[:200]!r} leaves the target")
        try:
            at = self._open_existing(before[:-1])
            try:
                if not stat.S_ISREG(os.lstat(before[-1], dir_fd=at).st_mode):
                    raise TreeError(f"{record.extra}: not a file, so it cannot be hard-linked")
                self._remove_existing(parent, name)
                os.link(before[-1], name, src_dir_fd=at, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(at)
        except OSError as error:
            self._skip(record.name, f"another name of a file: {error.strerror}")
            return
        self._files += 1

    def _open_existing(self, parts: list[str]) -> int:
        """Open an existing folder of the target."""
        assert self._root is not None
        at = os.dup(self._root)
        for part in parts:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                deeper = os.open(part, flags, dir_fd=at)
            finally:
                os.close(at)
            at = deeper
        return at

    def _make_symlink(self, parent: int, parts: list[str], record: Record) -> None:
        to, name = record.extra, parts[-1]
        if "\0" in to or (not self._rules.as_image and not stays_inside(to, len(parts) - 1)):
            self._skip(record.name, f"a link to {_shown(to)}, which may lead out of the folder")
            return
        self._remove_existing(parent, name)
        os.symlink(to, name, dir_fd=parent)
        self._set_owner(
            record, lambda owner: os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
        )
        self._files += 1

    def _remove_existing(self, parent: int, name: str) -> None:
        try:
            info = os.lstat(name, dir_fd=parent)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(info.st_mode):
            raise TreeError(f"{name}: a folder is in the place of a file")
        os.unlink(name, dir_fd=parent)

    def _skip(self, name: str, why: str) -> None:
        self._skips += 1
        if len(self._skipped) < _MAX_SKIPPED_SHOWN:
            self._skipped.append(f"{_shown(name)}: {why[: 2 * _SHOWN]}")

    def summary(self) -> dict[str, Any]:
        if self._root is None:
            raise TreeError("the transfer is empty")
        for name, mode in reversed(self._deferred_modes):
            folder, _, last = name.rpartition("/")
            os.chmod(last, mode, dir_fd=self._open_parent(folder))
        more = self._skips - len(self._skipped)
        skipped = [*self._skipped, f"and {more} more"] if more else self._skipped
        return {"files": self._files, "bytes": self._bytes, "skipped": skipped}

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop().descriptor)
        if self._root is not None:
            os.close(self._root)


def _shown(name: str) -> str:
    return name if len(name) <= _SHOWN else f"{name[: _SHOWN - 1]}…"
