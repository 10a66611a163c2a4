"""How a file or a folder crosses the border of a sandbox, in either direction.

One side packs a tree into a pipe, the other unpacks it. Unpacking trusts nothing in it: no
name leaves the target, no link that stands in the target is followed, no link that points out
of the target is made. Devices, sockets and pipes are left out and listed. The standard library
alone is used, since one of the two sides may run inside the sandbox.

The stream is a sequence of records. Each has a line of eight fields,

    KIND MODE(octal) UID GID MTIME_NS SIZE NAMELEN EXTRALEN

then the name, relative to the root and empty for the root itself, then the extra bytes, then
SIZE bytes of content. Kinds: `d` folder, `f` file (extra, for the root: its base name), `l`
link (extra: where it leads), `s` left out (extra: why), `e` the end. Names are bytes.
"""

# Works on open folders and on bytes, which Path does not.
# ruff: noqa: PTH102, PTH112, PTH114, PTH115, PTH116, PTH118, PTH123

import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

__all__ = ["Rules", "TreeError", "pack", "pack_unless_link", "unpack"]

_CHUNK = 1 << 20
_LINE = 256
_NAME = 64 * 1024
_KEPT_SKIPS = 20


class TreeError(Exception):
    """A tree that cannot be packed or unpacked; the text says why."""


def pack(source: str, out: IO[bytes], ignored: Callable[[str], bool] | None = None) -> None:
    """Write the file or folder `source` to `out`, and a closing line that proves it whole.

    `ignored` says which names, relative to the folder, are left out.
    """
    try:
        root = os.stat(source)
    except OSError as error:
        raise TreeError(f"{source}: {error.strerror}") from None
    if stat.S_ISDIR(root.st_mode):
        _entry(out, "d", "", root)
        for name, path, info in _walk(source):
            if ignored is None or not ignored(name):
                _pack_one(out, name, path, info)
    elif stat.S_ISREG(root.st_mode):
        _pack_file(out, "", source, extra=posixpath.basename(source))
    else:
        raise TreeError(f"{source}: neither a file nor a folder")
    out.write(b"e 0 0 0 0 0 0 0\n")
    out.flush()


def pack_unless_link(source: str, out: IO[bytes]) -> None:
    """As `pack`, but a link is followed only to a place beside it: it may be an agent's."""
    if os.path.islink(source) and not _stays_inside(os.readlink(source), 0):
        raise TreeError(f"{source}: a link to {os.readlink(source)}, which is not followed")
    pack(source, out)


def _walk(source: str) -> Iterator[tuple[str, str, os.stat_result]]:
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(os.path.join(source, folder)) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                info = entry.stat(follow_symlinks=False)
                name = posixpath.join(folder, entry.name)
                yield name, entry.path, info
                if stat.S_ISDIR(info.st_mode):
                    waiting.append(name)


def _pack_one(out: IO[bytes], name: str, path: str, info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        _entry(out, "d", name, info)
    elif stat.S_ISLNK(info.st_mode):
        _entry(out, "l", name, info, extra=os.readlink(path))
    elif stat.S_ISREG(info.st_mode):
        _pack_file(out, name, path)
    else:
        _entry(out, "s", name, info, extra="neither a file, a folder nor a link")


def _pack_file(out: IO[bytes], name: str, path: str, extra: str = "") -> None:
    with open(path, "rb", buffering=0) as file:
        info = os.fstat(file.fileno())
        _entry(out, "f", name, info, size=info.st_size, extra=extra)
        left = info.st_size
        while left:
            chunk = file.read(min(_CHUNK, left))
            if not chunk:
                raise TreeError(f"{path}: it shrank while it was read")
            out.write(chunk)
            left -= len(chunk)


def _entry(
    out: IO[bytes], kind: str, name: str, info: os.stat_result, *, size: int = 0, extra: str = ""
) -> None:
    named, more = os.fsencode(name), os.fsencode(extra)
    if max(len(named), len(more)) > _NAME:
        raise TreeError(f"{name[:80]}…: its name is too long")
    mode, mtime = stat.S_IMODE(info.st_mode), info.st_mtime_ns
    line = f"{kind} {mode:o} {info.st_uid} {info.st_gid} {mtime} {size} {len(named)} {len(more)}\n"
    out.write(line.encode() + named + more)


class _Record(NamedTuple):
    kind: str
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int
    name: str
    extra: str


def _read_record(stream: IO[bytes]) -> _Record:
    line = stream.readline(_LINE)
    if not line.endswith(b"\n"):
        raise TreeError("the transfer broke off" if len(line) < _LINE else "a line is too long")
    kind, mode, *numbers = line.decode("ascii").split()
    uid, gid, mtime, size, named, more = map(int, numbers)
    if size < 0 or not 0 <= named <= _NAME or not 0 <= more <= _NAME:
        raise TreeError("the transfer is not readable: a length is out of bounds")
    both = stream.read(named + more)
    if len(both) < named + more:
        raise TreeError("the transfer broke off")
    name, extra = os.fsdecode(both[:named]), os.fsdecode(both[named:])
    return _Record(kind, int(mode, 8), uid, gid, mtime, size, name, extra)


@dataclass(frozen=True)
class Rules:
    """How a tree is unpacked."""

    limit: int | None = None
    """Bytes after which it is too much."""
    as_image: bool = False
    """Keep what an image may have: links that point anywhere, special and exact modes. What
    stands in the way of a folder is an error then, not replaced."""
    keep_owners: bool = False
    owner: tuple[int, int] | None = None
    mode: int | None = None
    """For every file and folder, instead of their own."""


def unpack(stream: IO[bytes], target: str, rules: Rules | None = None) -> dict[str, Any]:
    """Read what `pack` wrote into `target`. Returns counts and what was left out.

    A file goes to the path `target`, or into it where it is a folder or ends in a slash.
    """
    work = _Unpack(target, rules or Rules())
    try:
        while True:
            record = _read_record(stream)
            if record.kind == "e":
                return work.summary()
            work.take(record, stream)
    except (ValueError, OverflowError) as error:
        raise TreeError(f"the transfer is not readable: {error}") from None
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else target
        raise TreeError(f"{where}: {error.strerror}") from None
    finally:
        work.close()


class _Unpack:
    """The state of one unpacking: an open target folder and the bounds."""

    def __init__(self, target: str, rules: Rules) -> None:
        self._target = target
        self._rules = rules
        self._left = rules.limit
        self._root: int | None = None
        self._folder: tuple[str, int] | None = None
        self._files = 0
        self._bytes = 0
        self._skipped: list[str] = []
        self._skips = 0
        self._late: list[tuple[str, int]] = []

    def take(self, record: _Record, stream: IO[bytes]) -> None:
        kind, name = record.kind, record.name
        if name == "":
            self._begin(record, stream)
            return
        parts = name.split("/")
        if self._root is None or any(p in ("", ".", "..") or "\0" in p for p in parts):
            raise TreeError(f"{name!r} leaves the target")
        parent = self._open_parent("/".join(parts[:-1]))
        if kind == "d":
            self._make_folder(parent, parts[-1], record)
            self._late_mode(name, record)
        elif kind == "f":
            self._make_file(parent, parts[-1], record, stream)
        elif kind == "l":
            self._make_link(parent, parts, record)
        else:
            self._skip(f"{name}: {record.extra}")

    def _begin(self, record: _Record, stream: IO[bytes]) -> None:
        """The first entry: the target is a folder or a file, as the source was."""
        if self._root is not None or record.kind not in ("d", "f"):
            raise TreeError("the transfer has no root, or two")
        kind, target = record.kind, self._target
        if kind == "f" and (target.endswith("/") or os.path.isdir(target)):
            target = posixpath.join(target, posixpath.basename(record.extra))
        folder = target if kind == "d" else posixpath.dirname(target) or "/"
        self._make_way(folder)
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if kind == "f":
            self._make_file(self._root, posixpath.basename(target), record, stream)

    def _make_way(self, folder: str) -> None:
        """Make the target and what is missing above it, all for the same owner."""
        missing: list[str] = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = posixpath.dirname(folder.rstrip("/")) or "/"
        for path in reversed(missing):
            os.mkdir(path, 0o755)
            if self._rules.owner:
                os.chown(path, *self._rules.owner)

    def _open_parent(self, folder: str) -> int:
        """The folder's descriptor; links on the way are replaced, never followed."""
        assert self._root is not None
        if not folder:
            return self._root
        if self._folder is not None and self._folder[0] == folder:
            return self._folder[1]
        at = os.dup(self._root)
        for part in folder.split("/"):
            self._make_folder(at, part, None)
            deeper = os.open(
                part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at
            )
            os.close(at)
            at = deeper
        if self._folder is not None:
            os.close(self._folder[1])
        self._folder = (folder, at)
        return at

    def _make_folder(self, parent: int, name: str, record: _Record | None) -> None:
        """Have a folder; with its record, with its mode and owner too."""
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                if self._rules.as_image:
                    raise TreeError(f"{name}: a file or a link, not a folder, is there") from None
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, 0o755, dir_fd=parent)
            elif record is None:
                return
        if record is not None:
            self._own(record, lambda owner: os.chown(name, *owner, dir_fd=parent))
            # Writable and searchable for its owner, or nothing could be put in it.
            os.chmod(name, self._mode(record) | 0o700, dir_fd=parent)

    def _late_mode(self, name: str, record: _Record) -> None:
        """An image's folder gets its exact mode when everything is in it."""
        mode = self._mode(record)
        if self._rules.as_image and mode & 0o700 != 0o700:
            self._late.append((name, mode))

    def _mode(self, record: _Record) -> int:
        if self._rules.mode is not None:
            return self._rules.mode
        return record.mode & (0o7777 if self._rules.as_image else 0o777)

    def _own(self, record: _Record, chown: Callable[[tuple[int, int]], None]) -> None:
        owner = self._rules.owner
        if owner is None and self._rules.keep_owners:
            owner = (record.uid, record.gid)
        if owner is not None:
            try:
                chown(owner)
            except OSError as error:
                raise TreeError(
                    f"it cannot belong to user {owner[0]}: {error.strerror}; "
                    "without root a sandbox has one user only"
                ) from None

    def _make_file(self, parent: int, name: str, record: _Record, stream: IO[bytes]) -> None:
        size = record.size
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise TreeError(f"more than {self._rules.limit:,} bytes")
        self._remove_other(parent, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        with open(descriptor, "wb", buffering=0) as file:
            left = size
            while left:
                chunk = stream.read(min(_CHUNK, left))
                if not chunk:
                    raise TreeError("the transfer broke off")
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) :]
                left -= len(chunk)
            self._own(record, lambda owner: os.fchown(descriptor, *owner))
            os.fchmod(descriptor, self._mode(record))
            os.utime(descriptor, ns=(record.mtime, record.mtime))
        self._files += 1
        self._bytes += size

    def _make_link(self, parent: int, parts: list[str], record: _Record) -> None:
        to, name = record.extra, parts[-1]
        if "\0" in to or (not self._rules.as_image and not _stays_inside(to, len(parts) - 1)):
            self._skip(f"{'/'.join(parts)}: a link to {to}, which may lead out of the folder")
            return
        self._remove_other(parent, name)
        os.symlink(to, name, dir_fd=parent)
        self._own(
            record, lambda owner: os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
        )
        self._files += 1

    def _remove_other(self, parent: int, name: str) -> None:
        try:
            info = os.lstat(name, dir_fd=parent)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(info.st_mode):
            raise TreeError(f"{name}: a folder stands where a file is to be")
        os.unlink(name, dir_fd=parent)

    def _skip(self, why: str) -> None:
        self._skips += 1
        if len(self._skipped) < _KEPT_SKIPS:
            self._skipped.append(ascii(why[:200])[1:-1] if not why.isprintable() else why[:200])

    def summary(self) -> dict[str, Any]:
        if self._root is None:
            raise TreeError("the transfer is empty")
        for name, mode in reversed(self._late):
            folder, _, last = name.rpartition("/")
            os.chmod(last, mode, dir_fd=self._open_parent(folder))
        more = self._skips - len(self._skipped)
        skipped = [*self._skipped, f"and {more} more"] if more else self._skipped
        return {"files": self._files, "bytes": self._bytes, "skipped": skipped}

    def close(self) -> None:
        if self._folder is not None:
            os.close(self._folder[1])
            self._folder = None
        if self._root is not None:
            os.close(self._root)


def _stays_inside(to: str, depth: int) -> bool:
    """Whether a link, `depth` folders below the target, stays below it wherever it leads.

    Steps upwards count only at its beginning, where the folders above it are real ones: after
    a name they would start from wherever another link leads to.
    """
    steps = to.split("/")
    ups = 0
    while ups < len(steps) and steps[ups] == "..":
        ups += 1
    return not to.startswith("/") and ups <= depth and ".." not in steps[ups:]
