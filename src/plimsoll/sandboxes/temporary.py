"""Temporary files and folders of this host. The name of each says whose it is.

They go with the work they are for. What a process that was killed could not remove, the next that
starts on its host removes: a name carries its owner from the moment it is there.
"""

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from plimsoll.sandboxes.owners import is_left, mark, myself
from plimsoll.sandboxes.removal import remove_folder

__all__ = [
    "leftovers",
    "make_temporary",
    "prefix",
    "remove_leftovers",
    "temporary_folder",
    "temporary_folder_of_agents",
]

_PREFIX = "plimsoll-"
_RANDOM = "-"


def prefix() -> str:
    """How the names of this process's temporary files begin."""
    return f"{_PREFIX}{mark(myself())}{_RANDOM}"


def make_temporary() -> Path:
    """A temporary folder of this process. Its path is short, so that sockets fit in it."""
    return Path(tempfile.mkdtemp(prefix=prefix()))


@contextlib.contextmanager
def temporary_folder() -> Generator[Path]:
    """A temporary folder for as long as it takes."""
    folder = make_temporary()
    try:
        yield folder
    finally:
        remove_folder(folder)


@contextlib.asynccontextmanager
async def temporary_folder_of_agents() -> AsyncGenerator[Path]:
    """The same for files that may be many: it is removed in a thread."""
    folder = make_temporary()
    try:
        yield folder
    finally:
        await asyncio.to_thread(remove_folder, folder)


def leftovers(place: Path | None = None) -> list[Path]:
    """Temporary files of dead processes of this host: among its temporary files, or in a folder."""
    found = (place or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*")
    return sorted(path for path in found if _is_left(path))


def remove_leftovers(place: Path | None = None) -> None:
    for path in leftovers(place):
        with contextlib.suppress(OSError):  # what cannot be removed is no reason not to work
            remove_folder(path)


def _is_left(path: Path) -> bool:
    owner = path.name.removeprefix(_PREFIX).rpartition(_RANDOM)[0]
    try:
        found = path.lstat()
    except OSError:
        return False  # another was quicker
    # Anybody can make names in a temporary folder.
    ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    return ours and is_left(owner)
