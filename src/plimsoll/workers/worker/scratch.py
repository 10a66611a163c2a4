"""Temporary folders of runs on this host, each with a note of its run.

A process removes its folder when it exits. The folder of a killed process is removed by the next
worker on its host, or by `plimsoll clean RUN`.
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
    """Make a temporary folder for this process. Its path is short, so that sockets fit in it."""
    folder = make_temporary_folder()
    (folder / _NOTE).write_text(run, "utf-8")
    return folder


@contextlib.contextmanager
def scratch(run: str) -> Generator[Path]:
    """Redirect this process's temporary files to a folder that is removed on exit."""
    before = tempfile.tempdir
    folder = make_folder(run)
    tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        remove_folder(folder)


def leftovers(run: str) -> list[Path]:
    """Folders of dead processes of a run."""
    return [path for path in temporary.leftovers() if _run_of(path) == run]


def _run_of(folder: Path) -> str | None:
    try:
        return (folder / _NOTE).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
