"""Private files of the host, which other users cannot read. Sandboxes do not see them.

Root in a sandbox could read them, so a layer of whiteouts covers them. Every folder is listed once
to find them. Later scans list only the folders that changed, which takes a tenth of a second on a
typical system. A file that becomes private after the scan is found when its folder changes.
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

_SCAN_SECONDS = 60.0
"""A scan of another start within this time is reused."""
_SETTLED_NS = 1_000_000_000
"""A folder that changed within this time may change again without a new timestamp."""
_EXECUTABLE = 0o001
_SET_ID = 0o6000


class _Folder(msgspec.Struct, array_like=True):
    changed: int
    private: list[str]
    folders: list[str]


class _Scan(msgspec.Struct):
    at: float
    """The time of the scan, by the host's clock."""
    folders: dict[str, _Folder]


_scans: dict[str, _Scan] = {}
"""The last scans by folder. Saves time for a new home."""


def find_private_files(home: Home, tops: Iterable[str]) -> list[str]:
    """The private files and folders below the given folders. A private folder is not entered."""
    found: list[str] = []
    for top in tops:
        record = home.path / f"closed-{_digest([top])}.json"
        scan = _scans.get(top) or _read(record)
        if scan is None or not 0 <= time.time() - scan.at < _SCAN_SECONDS:
            scan = _scan(top, {} if scan is None else scan.folders)
            _write(record, scan)
        _scans[top] = scan
        found += (f"{path}/{x}" for path, folder in scan.folders.items() for x in folder.private)
    return sorted(found)


def _scan(top: str, previous: Mapping[str, _Folder]) -> _Scan:
    scan = _Scan(time.time(), {})
    device = os.lstat(top).st_dev
    pending = [top]
    while pending:
        path = pending.pop()
        with contextlib.suppress(OSError):  # it was removed meanwhile
            info = os.lstat(path)
            if info.st_dev != device:  # an overlay does not show what is mounted there
                continue
            folder = previous.get(path)
            if folder is None or folder.changed != info.st_ctime_ns:
                folder = _list(path, info.st_ctime_ns)
            scan.folders[path] = folder
            pending += (f"{path}/{name}" for name in folder.folders)
    return scan


def _list(path: str, changed: int) -> _Folder:
    settled = changed if changed < time.time_ns() - _SETTLED_NS else 0
    folder = _Folder(settled, [], [])
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                mode = entry.stat(follow_symlinks=False).st_mode
                if _is_private(mode):
                    folder.private.append(entry.name)
                elif stat.S_ISDIR(mode):
                    folder.folders.append(entry.name)
    return folder


def _is_private(mode: int) -> bool:
    """Whether other users cannot read a file or a folder.

    Set-ID programs that everyone may run are not private, even if unreadable, as sudo often is.
    """
    if stat.S_ISDIR(mode):
        return mode & 0o005 != 0o005
    return stat.S_ISREG(mode) and not mode & 0o004 and not (mode & _SET_ID and mode & _EXECUTABLE)


def _read(record: Path) -> _Scan | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=_Scan)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(record: Path, scan: _Scan) -> None:
    staging = record.with_name(f".{record.name}.{short_id()}")
    try:
        staging.write_bytes(msgspec.json.encode(scan))
        staging.rename(record)
    except (OSError, UnicodeError, msgspec.MsgspecError):
        staging.unlink(missing_ok=True)  # the record only saves time: the next start scans again


def make_whiteout_layers(
    home: Home, private: Iterable[str], targets: Iterable[str], single_user: bool
) -> dict[str, str]:
    """The whiteout folder, relative to the home, for each target with private files below it."""
    hidden = {
        target: [Path(path) for path in private if path.startswith(f"{target}/")]
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
        staging = staging_path(home.bases / short_id(), this_process())
        try:
            staging.mkdir()
            staging.chmod(0o755)
            for target, paths in hidden.items():
                _make_whiteouts(staging, Path(target), paths, single_user)
            staging.rename(folder)
        except OSError:
            remove_folder(staging)
            if not folder.is_dir():  # otherwise another process created it
                raise
    return {target: f"bases/{folder.name}{target}" for target in hidden}


def _make_whiteouts(staging: Path, target: Path, paths: list[Path], single_user: bool) -> None:
    folders = {target, *(x for path in paths for x in path.parents if target in x.parents)}
    for folder in folders:
        (staging / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
    for path in paths:
        os.mknod(staging / path.relative_to("/"), stat.S_IFCHR)  # device 0, 0: a whiteout
    for folder in folders:
        copy = staging / folder.relative_to("/")
        copy.chmod(0o755)
        if not single_user:  # an overlay takes a folder's owner and mode from its topmost layer
            info = folder.stat()
            os.chown(copy, info.st_uid, info.st_gid)
            shutil.copystat(folder, copy)


def _digest(parts: Iterable[str]) -> str:
    text = "\0".join(parts)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
