"""Archives that ADD unpacks.

They are unpacked into a folder of the host before they enter a sandbox, so nothing in them is
trusted: names stay below the folder, links are made last and so never lead the way for a file,
and devices are refused. Owners and modes are kept, the owners only where Plimsoll is root.
"""

import lzma
import os
import posixpath
import shutil
import tarfile
import zlib
from pathlib import Path

from plimsoll.core.errors import BuildError

__all__ = ["is_archive", "unpack_archive"]

_UNREADABLE = (
    tarfile.TarError, EOFError, OSError, OverflowError, lzma.LZMAError, zlib.error,
)  # fmt: skip


def is_archive(path: Path) -> bool:
    """Whether it is a tar file with something in it: plain, gzip, bzip2 or xz."""
    try:
        with tarfile.open(path) as archive:
            return archive.next() is not None
    except _UNREADABLE:
        return False


def unpack_archive(path: Path, folder: Path, where: str) -> None:
    """Unpack into an empty folder. What cannot be unpacked is a `BuildError`."""
    links: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                place = _below(folder, member.name)
                if member.issym():
                    links.append((place, member))
                elif place != folder:
                    _make(archive, member, place, folder)
        for place, member in links:
            _make_way(place, folder)
            place.symlink_to(member.linkname)
            _own(place, member)
    except _UNREADABLE as error:
        raise BuildError(f"{where}: {path.name} cannot be unpacked: {error}") from None


def _below(folder: Path, name: str) -> Path:
    return folder / posixpath.normpath("/" + name).lstrip("/")


def _own(place: Path, member: tarfile.TarInfo) -> None:
    if os.geteuid() == 0:
        os.chown(place, member.uid, member.gid, follow_symlinks=False)


def _make_way(place: Path, folder: Path) -> None:
    if place.parent.is_dir():
        return
    below = place.parents[: len(place.parents) - len(folder.parents) - 1]
    for parent in reversed([path for path in below if not path.is_dir()]):
        parent.mkdir()
        parent.chmod(0o755)


def _make(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path, folder: Path) -> None:
    _make_way(place, folder)
    if member.isdir():
        place.mkdir(exist_ok=True)
        _own(place, member)
        # Without root, what is closed to its owner could not be filled.
        place.chmod(member.mode & 0o7777 | (0 if os.geteuid() == 0 else 0o700))
    elif member.islnk():
        place.hardlink_to(_below(folder, member.linkname))
    elif (source := archive.extractfile(member)) is not None:
        place.unlink(missing_ok=True)
        with source, place.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        _own(place, member)
        place.chmod(member.mode & 0o7777)
        os.utime(place, (member.mtime, member.mtime))
    else:
        raise tarfile.ExtractError(f"{member.name} is a device or a pipe")
