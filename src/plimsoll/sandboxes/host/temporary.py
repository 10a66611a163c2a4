"""Temporary files and folders whose names carry their owner.

Each is removed by the code that made it. The leftovers of a killed process are removed by the
next process that starts on the host, which recognizes a dead owner by the name.
"""

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from plimsoll.sandboxes.host.owners import is_dead_owner_tag, owner_tag, this_process
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = [
    "large_temporary_folder",
    "leftovers",
    "make_temporary_folder",
    "remove_leftovers",
    "temporary_folder",
    "temporary_prefix",
]

_PREFIX = "plimsoll-"
_RANDOM = "-"


def temporary_prefix() -> str:
    """The prefix of the names of this process's temporary files."""
    return f"{_PREFIX}{owner_tag(this_process())}{_RANDOM}"


def make_temporary_folder() -> Path:
    """Create a temporary folder. Its path is short enough for Unix sockets."""
    return Path(tempfile.mkdtemp(prefix=temporary_prefix()))


@contextlib.contextmanager
def temporary_folder() -> Generator[Path]:
    """A temporary folder that is removed on exit."""
    folder = make_temporary_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


@contextlib.asynccontextmanager
async def large_temporary_folder() -> AsyncGenerator[Path]:
    """A temporary folder for many files. It is removed in a thread."""
    folder = make_temporary_folder()
    try:
        yield folder
    finally:
        await asyncio.to_thread(remove_folder, folder)


def leftovers(folder: Path | None = None) -> list[Path]:
    """Temporary files of dead processes of this host, in `folder` or the default one."""
    found = (folder or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*")
    return sorted(path for path in found if _is_leftover(path))


def remove_leftovers(folder: Path | None = None) -> None:
    for path in leftovers(folder):
        with contextlib.suppress(OSError):  # a leftover does no harm
            remove_folder(path)


def _is_leftover(path: Path) -> bool:
    owner = path.name.removeprefix(_PREFIX).rpartition(_RANDOM)[0]
    try:
        found = path.lstat()
    except OSError:
        return False  # another process removed it
    # Any user can create files in the temporary folder.
    ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    return ours and is_dead_owner_tag(owner)
