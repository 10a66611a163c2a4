"""Removes trees that an agent may have made: of any depth, with any links and modes."""

import os
import time
from pathlib import Path

from plimsoll.sandboxes.trees import TreeError

__all__ = ["make_empty", "remove_folder", "remove_tree"]

_DEEP = 64
_REMOVE_SECONDS = 5.0


def make_empty(path: str, mode: int) -> None:
    """Make `path` an empty folder, whatever was there.

    A link or a file in place of a parent folder is replaced: it could lead anywhere.
    """
    *above, name = [part for part in path.split("/") if part] or [""]
    if not path.startswith("/") or name in ("", ".", "..") or ".." in above:
        raise TreeError(f"{path!r} cannot be emptied")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    at = os.open("/", flags)
    try:
        for part in above:
            try:
                deeper = os.open(part, flags, dir_fd=at)
            except OSError:
                remove_tree(at, part)
                os.mkdir(part, 0o755, dir_fd=at)
                os.chmod(part, 0o755, dir_fd=at)
                deeper = os.open(part, flags, dir_fd=at)
            os.close(at)
            at = deeper
        remove_tree(at, name)
        os.mkdir(name, 0o755, dir_fd=at)
        os.chmod(name, mode, dir_fd=at)
    except OSError as error:
        raise TreeError(f"{path}: {error.strerror}") from None
    finally:
        os.close(at)


def remove_folder(folder: Path) -> None:
    """Remove a folder whose writers are dead or dying. Other processes may be removing it too.

    Nothing is moved out of the folder, so an interrupted removal leaves everything in it.
    """
    deadline = time.monotonic() + _REMOVE_SECONDS
    while os.path.lexists(folder):
        try:
            parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _empty(parent, folder.name)
                remove_tree(parent, folder.name)
            finally:
                os.close(parent)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _empty(parent: int, name: str) -> None:
    try:
        folder = _open_to_remove(parent, name)
    except NotADirectoryError:
        return
    try:
        for entry in os.listdir(folder):  # noqa: PTH208 - an open folder
            remove_tree(folder, entry)
    finally:
        os.close(folder)


def remove_tree(parent: int, name: str) -> None:
    """Remove an entry of an open folder and all below it; links are removed, not followed.

    Very deep folders are moved up beside `name` first, so that neither the stack nor the number
    of open files grows with the depth.
    """
    pending = [name]
    while pending:
        pending += _remove_below(parent, pending.pop(), parent, 0)


def _remove_below(parent: int, name: str, top: int, depth: int) -> list[str]:
    """Remove an entry. Returns the names in `top` that very deep folders were moved to."""
    try:
        os.unlink(name, dir_fd=parent)
        return []
    except FileNotFoundError:
        return []
    except (IsADirectoryError, PermissionError):
        pass
    if depth >= _DEEP:
        moved_to = f".plimsoll-deep-{os.urandom(8).hex()}"
        os.rename(name, moved_to, src_dir_fd=parent, dst_dir_fd=top)
        return [moved_to]
    folder = _open_to_remove(parent, name)
    moved: list[str] = []
    try:
        for entry in os.listdir(folder):  # noqa: PTH208 - an open folder
            moved += _remove_below(folder, entry, top, depth + 1)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)
    return moved


def _open_to_remove(parent: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder = os.open(name, flags, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        folder = os.open(name, flags, dir_fd=parent)
    if os.fstat(folder).st_mode & 0o700 != 0o700:
        os.fchmod(folder, 0o700)
    return folder
