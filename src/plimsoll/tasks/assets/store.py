"""The assets folder while it is staged: one stager at a time, and no half asset ever.

Everything is made under a name that begins with `.partial-` and comes to its own name in one
rename. What a killed stager left under such a name is removed by the next.
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
    """What a file or folder is: its digest and its size in bytes."""

    digest: str
    size: int


def measure(path: Path) -> Measure:
    """Digest and size of a file or a folder."""
    if path.is_dir():
        files = (Path(at, name) for at, _, names in os.walk(path) for name in names)
        size = sum(file.lstat().st_size for file in files)
        return Measure(f"tree:{digest_folders([path])}", size)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Measure(f"sha256:{digest}", path.stat().st_size)


def damage(folder: Path, asset: Asset) -> str | None:
    """What is wrong with an asset as it lies there; None where nothing is."""
    path = folder / asset.path
    try:
        found = measure(path)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if found.digest != asset.digest:
        return f"damaged: {found.size:,} bytes whose digest is not that of assets.toml"
    return None


@dataclass(frozen=True, slots=True)
class AssetStore:
    """An assets folder that this process alone stages to."""

    folder: Path

    @classmethod
    @contextmanager
    def held(cls, folder: Path) -> "Generator[AssetStore]":
        """Make the folder where needed and keep others out; `AssetError` says who holds it."""
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
                    "start again when that has ended"
                ) from None
            except OSError as error:
                raise AssetError(
                    f"{folder} cannot be locked: {error.strerror}: its file system has no locks; "
                    "stage to a folder on a local disk, and copy it"
                ) from None
            _sign(lock.fileno())
            place = cls(folder.absolute())
            place.clean()
            yield place

    def clean(self) -> None:
        """Remove what stagers that were killed have left."""
        for where in (self.folder, self.folder / "shims", self.folder / "bin"):
            for left in where.glob(f"{PARTIAL}*"):
                _remove(left)

    @contextmanager
    def partial(self) -> Generator[Path]:
        """A folder to make an asset in; nothing of it is left afterwards."""
        made = self.folder / f"{PARTIAL}{short_id()}"
        made.mkdir()
        try:
            yield made
        finally:
            _remove(made)

    def put(self, made: Path, path: str) -> Measure:
        """Give what was made its name, in place of what may stand there."""
        _open_to_all(made)
        found = measure(made)
        target = self.folder / path
        make_readable_folder(target.parent)
        aside = self.folder / f"{PARTIAL}{short_id()}"
        if made.is_dir() or (target.is_dir() and not target.is_symlink()):
            # A rename replaces a file by a file, and nothing else.
            with suppress(FileNotFoundError):
                target.rename(aside)
        made.rename(target)
        _remove(aside)
        return found

    def remove(self, path: str) -> None:
        """Take an asset away, in one rename."""
        aside = self.folder / f"{PARTIAL}{short_id()}"
        try:
            (self.folder / path).rename(aside)
        except FileNotFoundError:
            return
        _remove(aside)


def _sign(lock: int) -> None:
    """Leave word of who holds the lock; on a full disk nobody learns it, and nothing else."""
    words = f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}\n"
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, words.encode(), 0)
    except OSError:
        return


def make_readable_folder(folder: Path) -> None:
    """Make a folder, where it is not there, that any user may look into."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)


def _open_to_all(path: Path) -> None:
    """Any user of a sandbox may read an asset, whatever the umask was."""
    _open_one(path)
    for at, folders, files in os.walk(path):
        for name in (*folders, *files):
            _open_one(Path(at, name))


def _open_one(path: Path) -> None:
    mode = stat.S_IMODE(path.lstat().st_mode)
    if not path.is_symlink():
        wanted = mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0)
        if wanted != mode:
            path.chmod(wanted)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
