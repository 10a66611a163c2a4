"""Temporary folders of runs on this host, each with a note of its run.

They are gone when their owner is. What one that was killed could not remove, the next worker on
its host removes, or `plimsoll clean RUN`.
"""

import contextlib
import tempfile
from collections.abc import Generator
from pathlib import Path

from plimsoll.sandboxes.host import temporary
from plimsoll.sandboxes.host.temporary import make_temporary_folder
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = ["leftovers", "make_folder", "scratch"]

_NOTE = ".run"


def make_folder(run: str) -> Path:
    """A temporary folder for this process. Its path is short, so that sockets fit in it."""
    folder = make_temporary_folder()
    (folder / _NOTE).write_text(run, "utf-8")
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


def leftovers(run: str) -> list[Path]:
    """Folders of processes of a run that are no more."""
    return [path for path in temporary.leftovers() if _run_of(path) == run]


def _run_of(folder: Path) -> str | None:
    try:
        return (folder / _NOTE).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
