"""A digest of what folders hold, so that a change of a single byte or mode is seen."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["digest_folders"]


def digest_folders(paths: Sequence[Path]) -> str:
    """sha256 over names, kinds, x bits, link targets and contents; later folders overlay earlier.

    Names are relative, so equal trees in different places have equal digests.
    """
    entries: dict[str, Path] = {}
    for root in paths:
        for path in _entries(root):
            _lay(entries, path.relative_to(root).as_posix(), path)
    digest = hashlib.sha256()
    for name in sorted(entries):
        for part in _parts(os.fsencode(name), entries[name]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def _lay(entries: dict[str, Path], name: str, path: Path) -> None:
    """A file in place of a folder takes away what stood below it."""
    below = entries.get(name)
    if below is not None and _is_folder(below) and not _is_folder(path):
        for other in [other for other in entries if other.startswith(f"{name}/")]:
            del entries[other]
    entries[name] = path


def _entries(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root, onerror=_fail):
        for name in (*folders, *files):
            yield Path(folder, name)


def _fail(error: OSError) -> None:
    raise error


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _parts(name: bytes, path: Path) -> tuple[bytes, bytes, bytes]:
    """Kind, name and content. Each is hashed with its length: no two trees give equal bytes."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return b"l", name, os.fsencode(path.readlink())
    if stat.S_ISDIR(mode):
        return b"d", name, b""
    if not stat.S_ISREG(mode):
        return b"s", name, b""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").digest()
    return b"x" if mode & 0o111 else b"f", name, content
