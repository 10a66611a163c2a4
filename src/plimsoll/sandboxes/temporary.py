"""Temporary files and folders whose names carry their owner.

Each is removed with the work it belongs to. The leftovers of a killed process are removed by the
next process that starts on the host: the owner in the name shows that it is dead.
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
    """The prefix of the names of this process's temporary files."""
    return f"{_PREFIX}{mark(myself())}{_RANDOM}"


def make_temporary() -> Path:
    """Create a temporary folder. Its path is short enough for Unix sockets."""
    return Path(tempfile.mkdtemp(prefix=prefix()))


@contextlib.contextmanager
def temporary_folder() -> Generator[Path]:
    """A temporary folder that is removed on exit."""
    folder = make_temporary()
    try:
        yield folder
    finally:
        remove_folder(folder)


@contextlib.asynccontextmanager
async def temporary_folder_of_agents() -> AsyncGenerator[Path]:
    """A temporary folder for many files: it is removed in a thread."""
    folder = make_temporary()
    try:
        yield folder
    finally:
        await asyncio.to_thread(remove_folder, folder)


def leftovers(place: Path | None = None) -> list[Path]:
    """Temporary files of dead processes of this host, in `place` or the default folder."""
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
