"""The build context: the files that COPY and ADD take, their digests, and archives for ADD.

Archives are unpacked into a folder of the host before they enter a sandbox, so their content is
not trusted: names stay below the folder, links are made last and so are never followed, and
devices are refused. Modes are kept, and owners too if Plimsoll is root.
"""

import hashlib
import lzma
import os
import posixpath
import re
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import BuildError
from plimsoll.tasks.dockerfile.dockerignore import IgnoreRules, glob_regex

__all__ = [
    "BuildContext",
    "CopySource",
    "NamePattern",
    "is_archive",
    "is_pattern",
    "unpack_archive",
]


def is_pattern(path: str) -> bool:
    """Whether a source of COPY has wildcards."""
    return any(char in path for char in "*?[")


class NamePattern:
    """One component of a path with wildcards. They match a leading dot too."""

    def __init__(self, pattern: str, where: str) -> None:
        try:
            self._regex = re.compile(glob_regex(pattern), re.DOTALL)
        except (re.error, ValueError):
            raise BuildError(f"{where}: invalid pattern: {pattern}") from None

    def matches(self, name: str) -> bool:
        return self._regex.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class CopySource:
    """A file or folder of the context, as one source of a COPY."""

    path: Path
    relative: str
    rules: IgnoreRules

    def ignored(self, name: str) -> bool:
        """Whether `.dockerignore` excludes a name below this folder."""
        return self.rules.ignored(posixpath.normpath(posixpath.join(self.relative, name)))

    @property
    def excluded(self) -> bool:
        """Whether `.dockerignore` excludes it with all its content."""
        if self.relative == "." or not self.rules.ignored(self.relative):
            return False
        has_exceptions = self.rules.has_exceptions and self.path.is_dir()
        return not (has_exceptions and any(True for _ in self._files()))

    def digest(self) -> str:
        """A digest of the names, modes, links and contents that would be copied."""
        sums = hashlib.sha256()
        for name, path in self._files():
            info = path.lstat()
            content = b""
            if stat.S_ISLNK(info.st_mode):
                content = os.fsencode(path.readlink())
            elif stat.S_ISREG(info.st_mode):
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            kind = f"{stat.S_IFMT(info.st_mode)} {info.st_mode & 0o7777}".encode()
            for part in (os.fsencode(name), kind, content):
                sums.update(len(part).to_bytes(8, "big") + part)
        return sums.hexdigest()

    def _files(self) -> Iterator[tuple[str, Path]]:
        if not self.path.is_dir():
            # A link that is itself the source is followed.
            yield self.path.name, Path(os.path.realpath(self.path))
            return
        for folder, folders, files in os.walk(self.path):
            folders.sort()
            for entry in sorted(files + folders):
                path = Path(folder, entry)
                name = path.relative_to(self.path).as_posix()
                if not self.ignored(name):
                    yield name, path


class BuildContext:
    """The folder that a Dockerfile copies from."""

    def __init__(self, folder: Path, dockerfile: Path) -> None:
        self._folder = folder
        own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
        self._rules = IgnoreRules.from_file(own if own.is_file() else folder / ".dockerignore")

    def find(self, pattern: str, where: str) -> list[CopySource]:
        """The files and folders of a source of COPY, without excluded ones.

        A pattern may match nothing, as in Docker. A plain name must exist.
        """
        clean = posixpath.normpath("/" + pattern).lstrip("/") or "."
        if is_pattern(clean):
            found = self._matching(clean.split("/"), where)
            return [s for s in (self._source(path, where) for path in found) if not s.excluded]
        path = self._folder / clean
        if not path.exists():
            raise BuildError(f"{where}: {pattern} is not in the build context")
        source = self._source(path, where)
        if source.excluded:
            raise BuildError(
                f"{where}: {pattern} is excluded from the build context by .dockerignore"
            )
        return [source]

    def _matching(self, parts: list[str], where: str) -> list[Path]:
        found = [self._folder]
        for part in parts:
            name = NamePattern(part, where)
            folders = [path for path in found if path.is_dir()]
            found = [p for f in folders for p in sorted(f.iterdir()) if name.matches(p.name)]
        return found

    def _source(self, path: Path, where: str) -> CopySource:
        relative = path.relative_to(self._folder).as_posix()
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._folder)):
            raise BuildError(f"{where}: {relative} is a link that leads out of the build context")
        return CopySource(path, relative, self._rules)


_UNREADABLE = (
    tarfile.TarError, EOFError, OSError, OverflowError, lzma.LZMAError, zlib.error,
)  # fmt: skip


def is_archive(path: Path) -> bool:
    """Whether a file is a non-empty tar: plain, gzip, bzip2 or xz."""
    try:
        with tarfile.open(path) as archive:
            return archive.next() is not None
    except _UNREADABLE:
        return False


def unpack_archive(path: Path, folder: Path, where: str) -> None:
    """Unpack into an empty folder. Raises `BuildError` if that fails."""
    links: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                target = _below(folder, member.name)
                if member.issym():
                    links.append((target, member))
                elif target != folder:
                    _extract(archive, member, target, folder)
        for target, member in links:
            _make_parents(target, folder)
            target.symlink_to(member.linkname)
            _set_owner(target, member)
    except _UNREADABLE as error:
        raise BuildError(f"{where}: {path.name} cannot be unpacked: {error}") from None


def _below(folder: Path, name: str) -> Path:
    return folder / posixpath.normpath("/" + name).lstrip("/")


def _set_owner(path: Path, member: tarfile.TarInfo) -> None:
    if os.geteuid() == 0:
        os.chown(path, member.uid, member.gid, follow_symlinks=False)


def _make_parents(path: Path, folder: Path) -> None:
    if path.parent.is_dir():
        return
    below = path.parents[: len(path.parents) - len(folder.parents) - 1]
    for parent in reversed([one for one in below if not one.is_dir()]):
        parent.mkdir()
        parent.chmod(0o755)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, folder: Path) -> None:
    _make_parents(path, folder)
    if member.isdir():
        path.mkdir(exist_ok=True)
        _set_owner(path, member)
        # Without root, the folder must be writable for its owner to be filled.
        path.chmod(member.mode & 0o7777 | (0 if os.geteuid() == 0 else 0o700))
    elif member.islnk():
        path.hardlink_to(_below(folder, member.linkname))
    elif (source := archive.extractfile(member)) is not None:
        path.unlink(missing_ok=True)
        with source, path.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        _set_owner(path, member)
        path.chmod(member.mode & 0o7777)
        os.utime(path, (member.mtime, member.mtime))
    else:
        raise tarfile.ExtractError(f"{member.name} is a device or a pipe")
