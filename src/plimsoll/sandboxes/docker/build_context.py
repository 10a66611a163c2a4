"""A build's context: the files that `.dockerignore` lets through, their digest, their tar."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from plimsoll.sandboxes.docker.tars import Entry, Tar, add_text, add_tree, sorted_entries
from plimsoll.tasks.ignore import IgnoreRules

__all__ = ["DOCKERFILE", "BuildContext", "ignore_file"]

DOCKERFILE = ".plimsoll.Dockerfile"
"""The name that the Dockerfile goes by in what the engine gets."""
_IGNORE = ".dockerignore"

_Known = tuple[str, int, int, int, int]
_digests: dict[_Known, bytes] = {}
"""Digests of files by path, inode, size and times: a group of trials reads a context once."""
_MOST_KNOWN = 100_000


def ignore_file(context: Path, dockerfile: Path) -> Path:
    """The `.dockerignore` of a Dockerfile: its own, or the context's."""
    own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    return own if own.is_file() else context / _IGNORE


class BuildContext:
    """The folder that a Dockerfile copies from. Reads files: to be used in a thread."""

    def __init__(self, folder: Path, dockerfile: Path) -> None:
        self._folder = folder
        self._rules = IgnoreRules.from_file(ignore_file(folder, dockerfile))

    def entries(self) -> Iterator[Entry]:
        """What is in it, in an order that is always the same."""
        return self._below(self._folder, "")

    def digest(self) -> str:
        """Names, modes, links and contents of everything in it."""
        sums = hashlib.sha256()
        for name, path in self.entries():
            info = path.lstat()
            kind = f"{stat.S_IFMT(info.st_mode)} {info.st_mode & 0o7777}".encode()
            for part in (os.fsencode(name), kind, _content(path, info)):
                sums.update(len(part).to_bytes(8, "big") + part)
        return sums.hexdigest()

    def write(self, tar: Tar, dockerfile: str) -> None:
        """Write it with the Dockerfile that is to be built.

        The engine takes out of a context what its `.dockerignore` names of these two, so the
        Dockerfile's name is added to that file: `COPY . .` does not see it.
        """
        others = (entry for entry in self.entries() if entry[0] not in (_IGNORE, DOCKERFILE))
        add_tree(tar, others)
        file = self._folder / _IGNORE
        if file.is_file() and not self._rules.ignored(_IGNORE):
            own = file.read_bytes() + b"\n"
        else:
            own = f"{_IGNORE}\n".encode()
        add_text(tar, _IGNORE, own + f"{DOCKERFILE}\n".encode())
        add_text(tar, DOCKERFILE, dockerfile.encode())

    def _below(self, folder: Path, prefix: str) -> Iterator[Entry]:
        for entry in sorted_entries(folder):
            name, path = prefix + entry.name, Path(entry.path)
            ignored = self._rules.ignored(name)
            if not ignored:
                yield name, path
            # Something in an ignored folder may be brought back.
            if entry.is_dir(follow_symlinks=False) and (not ignored or self._rules.has_exceptions):
                yield from self._below(path, f"{name}/")


def _content(path: Path, info: os.stat_result) -> bytes:
    if stat.S_ISLNK(info.st_mode):
        return os.fsencode(path.readlink())
    if not stat.S_ISREG(info.st_mode):
        return b""
    known = (str(path), info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    if known not in _digests:
        if len(_digests) >= _MOST_KNOWN:
            _digests.clear()
        with path.open("rb") as file:
            _digests[known] = hashlib.file_digest(file, "sha256").digest()
    return _digests[known]
