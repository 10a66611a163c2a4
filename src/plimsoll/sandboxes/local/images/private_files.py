"""Files of the host that are closed to other users. Sandboxes on its own system do not see them.

Root in a sandbox could read them there: it may read any file. So a layer of whiteouts lies over
the host's folders. To know what to hide, every folder is listed once; later looks list only the
folders that changed since, which takes a tenth of a second for a usual system. A file that is
closed after its folder was listed is found when something in that folder changes.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from plimsoll.core.ids import short_id
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.resources import staging_path
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = ["find_private_files", "make_whiteout_layers"]

_LOOK_SECONDS = 60.0
"""What another start found so recently is taken as it is."""
_SETTLED_NS = 1_000_000_000
"""A folder that changed so recently could change again without its time saying so."""
_PROGRAM = 0o001
_SETS_ID = 0o6000


class _Folder(msgspec.Struct, array_like=True):
    changed: int
    closed: list[str]
    folders: list[str]


class _Look(msgspec.Struct):
    at: float
    """By the host's clock."""
    folders: dict[str, _Folder]


_looks: dict[str, _Look] = {}
"""By the folder looked through. Saves time for a home that is new."""


def find_private_files(home: Home, tops: Iterable[str]) -> list[str]:
    """The closed files and folders below some folders; what is below a closed one is not listed."""
    found: list[str] = []
    for top in tops:
        record = home.path / f"closed-{_digest([top])}.json"
        look = _looks.get(top) or _read(record)
        if look is None or not 0 <= time.time() - look.at < _LOOK_SECONDS:
            look = _look(top, {} if look is None else look.folders)
            _write(record, look)
        _looks[top] = look
        found += (f"{path}/{x}" for path, folder in look.folders.items() for x in folder.closed)
    return sorted(found)


def _look(top: str, known: Mapping[str, _Folder]) -> _Look:
    look = _Look(time.time(), {})
    device = os.lstat(top).st_dev
    waiting = [top]
    while waiting:
        path = waiting.pop()
        with contextlib.suppress(OSError):  # it went meanwhile
            info = os.lstat(path)
            if info.st_dev != device:  # an overlay does not show what is mounted there
                continue
            folder = known.get(path)
            if folder is None or folder.changed != info.st_ctime_ns:
                folder = _list(path, info.st_ctime_ns)
            look.folders[path] = folder
            waiting += (f"{path}/{name}" for name in folder.folders)
    return look


def _list(path: str, changed: int) -> _Folder:
    settled = changed if changed < time.time_ns() - _SETTLED_NS else 0
    folder = _Folder(settled, [], [])
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                mode = entry.stat(follow_symlinks=False).st_mode
                if _is_closed(mode):
                    folder.closed.append(entry.name)
                elif stat.S_ISDIR(mode):
                    folder.folders.append(entry.name)
    return folder


def _is_closed(mode: int) -> bool:
    """Whether other users are kept from reading a file or a folder.

    A program that sets its user is everybody's to run though often nobody's to read, as sudo is.
    """
    if stat.S_ISDIR(mode):
        return mode & 0o005 != 0o005
    return stat.S_ISREG(mode) and not mode & 0o004 and not (mode & _SETS_ID and mode & _PROGRAM)


def _read(record: Path) -> _Look | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=_Look)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(record: Path, look: _Look) -> None:
    half = record.with_name(f".{record.name}.{short_id()}")
    try:
        half.write_bytes(msgspec.json.encode(look))
        half.rename(record)
    except (OSError, UnicodeError, msgspec.MsgspecError):  # it only saves time; the next one looks
        half.unlink(missing_ok=True)


def make_whiteout_layers(
    home: Home, closed: Iterable[str], targets: Iterable[str], single_user: bool
) -> dict[str, str]:
    """The folder of whiteouts, relative to home, for each target that something is closed below."""
    hidden = {
        target: [Path(path) for path in closed if path.startswith(f"{target}/")]
        for target in targets
    }
    hidden = {target: paths for target, paths in hidden.items() if paths}
    if not hidden:
        return {}
    above = sorted(
        {parent for paths in hidden.values() for path in paths for parent in path.parents}
    )
    states = [f"{path} {info.st_mode} {info.st_uid}:{info.st_gid}"
              for path in above for info in (path.lstat(),)]  # fmt: skip
    listed = [str(path) for paths in hidden.values() for path in paths]
    key = _digest([str(single_user), *states, *listed])
    folder = home.bases / f"hidden-{key}"
    if not folder.is_dir():
        made = staging_path(home.bases / short_id(), this_process())
        try:
            made.mkdir()
            made.chmod(0o755)
            for target, paths in hidden.items():
                _make_whiteouts(made, Path(target), paths, single_user)
            made.rename(folder)
        except OSError:
            remove_folder(made)
            if not folder.is_dir():  # or else another process was quicker
                raise
    return {target: f"bases/{folder.name}{target}" for target in hidden}


def _make_whiteouts(made: Path, target: Path, paths: list[Path], single_user: bool) -> None:
    folders = {target, *(x for path in paths for x in path.parents if target in x.parents)}
    for folder in folders:
        (made / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
    for path in paths:
        os.mknod(made / path.relative_to("/"), stat.S_IFCHR)  # device 0, 0: a whiteout
    for folder in folders:
        place = made / folder.relative_to("/")
        place.chmod(0o755)
        if not single_user:  # an overlay takes a folder's owner and mode from its topmost layer
            info = folder.stat()
            os.chown(place, info.st_uid, info.st_gid)
            shutil.copystat(folder, place)


def _digest(parts: Iterable[str]) -> str:
    text = "\0".join(parts)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
