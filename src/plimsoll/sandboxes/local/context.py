"""What COPY and ADD take from a build context: which files, and a digest of them."""

import hashlib
import os
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import BuildError
from plimsoll.tasks.ignore import IgnoreRules

__all__ = ["BuildContext", "CopySource"]


@dataclass(frozen=True, slots=True)
class CopySource:
    """A file or folder of the context, as one source of a COPY."""

    path: Path
    relative: str
    rules: IgnoreRules

    def ignored(self, name: str) -> bool:
        """Whether `.dockerignore` leaves out a name below this folder."""
        return self.rules.ignored(posixpath.normpath(posixpath.join(self.relative, name)))

    def digest(self) -> str:
        """Names, modes, links and contents of all that would be copied."""
        sums = hashlib.sha256()
        for name, path in self._files():
            info = path.lstat()
            sums.update(f"{name}\0{stat.S_IFMT(info.st_mode)}\0{info.st_mode & 0o777}\0".encode())
            if stat.S_ISLNK(info.st_mode):
                sums.update(os.fsencode(path.readlink()))
            elif stat.S_ISREG(info.st_mode):
                with path.open("rb") as file:
                    sums.update(hashlib.file_digest(file, "sha256").digest())
        return sums.hexdigest()

    def _files(self) -> Iterator[tuple[str, Path]]:
        if not self.path.is_dir():
            yield self.path.name, self.path
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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rules = IgnoreRules.from_file(folder / ".dockerignore")

    def find(self, pattern: str, where: str) -> list[CopySource]:
        """The files and folders that a source of COPY names, ignored ones left out."""
        clean = posixpath.normpath("/" + pattern).lstrip("/") or "."
        if any(char in clean for char in "*?["):
            found = sorted(self._folder.glob(clean))
        else:
            path = self._folder / clean
            found = [path] if path.exists() or path.is_symlink() else []
        sources = [self._source(path, where) for path in found]
        kept = [s for s in sources if s.relative == "." or not self._rules.ignored(s.relative)]
        if not kept:
            hint = ", left out by .dockerignore" if sources else ""
            raise BuildError(f"{where}: {pattern} is not in the build context{hint}")
        return kept

    def _source(self, path: Path, where: str) -> CopySource:
        if not path.resolve().is_relative_to(self._folder.resolve()):
            raise BuildError(f"{where}: {path.name} leads out of the build context")
        relative = path.relative_to(self._folder).as_posix()
        return CopySource(path, relative, self._rules)
