"""Temporary folders of runs on this host, each with a note of whose it is.

They are gone when their owner is. What one that was killed could not remove, the next worker on
its host removes, or `plimsoll clean RUN`.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path

import msgspec

from plimsoll.core.ids import Owner
from plimsoll.sandboxes.owners import is_alive, myself
from plimsoll.sandboxes.removal import remove_folder

__all__ = ["leftovers", "make_folder", "remove_leftovers", "scratch"]

_PREFIX = "plimsoll-"
_NOTE = ".owner"


class _Note(msgspec.Struct, frozen=True):
    run: str
    owner: Owner


def make_folder(run: str) -> Path:
    """A temporary folder for this process. Its path is short, so that sockets fit in it."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (folder / _NOTE).write_bytes(msgspec.json.encode(_Note(run, myself())))
    return folder


@contextlib.contextmanager
def scratch(run: str) -> Generator[Path]:
    """Have this process write its temporary files to a folder that goes with it."""
    before = tempfile.tempdir
    folder = make_folder(run)
    tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        remove_folder(folder)


def leftovers(run: str | None = None) -> list[Path]:
    """Folders of processes that are no more: of all runs, or of one."""
    found = Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")
    return sorted(path for path in found if _is_left(path, run))


def remove_leftovers() -> None:
    for path in leftovers():
        with contextlib.suppress(OSError):  # what cannot be removed is no reason not to work
            remove_folder(path)


def _is_left(path: Path, run: str | None) -> bool:
    try:
        found = path.lstat()
        # Anybody can make names in a temporary folder.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        note = msgspec.json.decode((path / _NOTE).read_bytes(), type=_Note)
    except (OSError, msgspec.MsgspecError):
        return False  # somebody else's, or another was quicker
    return run in (None, note.run) and not is_alive(note.owner)
