"""Asset store: an assets folder locked for one writer, with atomic changes.

Assets are created under a name that begins with `.partial-` and renamed when complete. The next
writer removes partial files of a killed one.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import AssetError
from plimsoll.core.ids import short_id
from plimsoll.tasks.assets.asset import Asset
from plimsoll.tasks.folder_digest import digest_folders

__all__ = ["AssetStore", "damage", "make_readable_folder", "measure"]

PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class Measure:
    """Digest and size in bytes of a file or folder."""

    digest: str
    size: int


def measure(path: Path) -> Measure:
    """Return digest and size of a file or folder."""
    if path.is_dir():
        files = (Path(at, name) for at, _, names in os.walk(path) for name in names)
        size = sum(file.lstat().st_size for file in files)
        return Measure(f"tree:{digest_folders([path])}", size)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Measure(f"sha256:{digest}", path.stat().st_size)


def damage(folder: Path, asset: Asset) -> str | None:
    """Return the damage of a stored asset; None if it is intact."""
    path = folder / asset.path
    try:
        found = measure(path)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if found.digest != asset.digest:
        return f"damaged: its digest ({found.size:,} bytes) differs from assets.toml"
    return None


@dataclass(frozen=True, slots=True)
class AssetStore:
    """An assets folder locked by this process."""

    folder: Path

    @classmethod
    @contextmanager
    def locked(cls, folder: Path) -> "Generator[AssetStore]":
        """Create the folder if needed and lock it; `AssetError` names the holder of the lock."""
        try:
            make_readable_folder(folder)
            lock = (folder / ".lock").open("a+")
        except OSError as error:
            raise AssetError(f"{folder}: cannot be written: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise AssetError(
                    f"{folder} is being staged by {lock.read().strip() or 'another process'}; "
                    "try again when it has finished"
                ) from None
            except OSError as error:
                raise AssetError(
                    f"{folder} cannot be locked: {error.strerror}: its file system has no locks; "
                    "stage to a folder on a local disk and copy it"
                ) from None
            _write_holder(lock.fileno())
            store = cls(folder.absolute())
            store.clean()
            yield store

    def clean(self) -> None:
        """Remove partial files of killed writers."""
        for where in (self.folder, self.folder / "shims", self.folder / "bin"):
            for path in where.glob(f"{PARTIAL}*"):
                _remove(path)

    @contextmanager
    def partial(self) -> Generator[Path]:
        """Create a temporary folder for an asset; it is removed afterwards."""
        partial = self.folder / f"{PARTIAL}{short_id()}"
        partial.mkdir()
        try:
            yield partial
        finally:
            _remove(partial)

    def put(self, partial: Path, path: str) -> Measure:
        """Move a complete file or folder to its path, replacing an older one."""
        _make_readable(partial)
        found = measure(partial)
        target = self.folder / path
        make_readable_folder(target.parent)
        trash = self.folder / f"{PARTIAL}{short_id()}"
        if partial.is_dir() or (target.is_dir() and not target.is_symlink()):
            # A rename can only replace a file by a file.
            with suppress(FileNotFoundError):
                target.rename(trash)
        partial.rename(target)
        _remove(trash)
        return found

    def remove(self, path: str) -> None:
        """Remove an asset atomically."""
        trash = self.folder / f"{PARTIAL}{short_id()}"
        try:
            (self.folder / path).rename(trash)
        except FileNotFoundError:
            return
        _remove(trash)


def _write_holder(lock: int) -> None:
    """Write the holder of the lock to the lock file; ignore a full disk."""
    holder = f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}\n"
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, holder.encode(), 0)
    except OSError:
        return


def make_readable_folder(folder: Path) -> None:
    """Create a folder, if it is missing, that all users may read."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)


def _make_readable(path: Path) -> None:
    """Let all users of a sandbox read an asset, whatever the umask."""
    _make_one_readable(path)
    for at, folders, files in os.walk(path):
        for name in (*folders, *files):
            _make_one_readable(Path(at, name))


def _make_one_readable(path: Path) -> None:
    mode = stat.S_IMODE(path.lstat().st_mode)
    if not path.is_symlink():
        readable = mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0)
        if readable != mode:
            path.chmod(readable)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
