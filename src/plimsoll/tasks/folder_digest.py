"""Digest of folder contents: any changed byte, name or executable bit changes it."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["digest_folders"]


def digest_folders(paths: Sequence[Path]) -> str:
    """Return the sha256 of names, file types, executable bits, link targets and contents.

    Later folders overlay earlier ones. Names are relative, so equal trees at different paths
    have equal digests.
    """
    entries: dict[str, Path] = {}
    for root in paths:
        for path in _entries(root):
            _overlay(entries, path.relative_to(root).as_posix(), path)
    digest = hashlib.sha256()
    for name in sorted(entries):
        for part in _parts(os.fsencode(name), entries[name]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def _overlay(entries: dict[str, Path], name: str, path: Path) -> None:
    """Add an entry. A file that replaces a folder removes the entries below it."""
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
    """Type, name and content. Each is hashed with its length, so encodings are unambiguous."""
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
