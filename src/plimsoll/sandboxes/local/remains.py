"""What a sandbox leaves on the host, and how it is cleared away: by itself, or by whoever
starts next after its owner died.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from plimsoll.core.ids import Labels
from plimsoll.sandboxes.local.cgroups import Cgroup
from plimsoll.sandboxes.local.home import Home
from plimsoll.sandboxes.local.inside.removal import remove_tree
from plimsoll.sandboxes.owners import is_alive

__all__ = ["Meta", "Remains", "reap", "remove_folder"]

_END_SECONDS = 10.0
_REMOVE_SECONDS = 5.0
_HALF_MADE_SECONDS = 60.0


class Meta(msgspec.Struct, frozen=True):
    """`meta.json` of a sandbox's folder, written before anything else of it exists."""

    labels: Labels
    cgroups: dict[str, str]


class Remains:
    """The host's side of one sandbox: its folder, its groups, and the sign that it lives."""

    def __init__(self, folder: Path, cgroup: Cgroup | None, life: socket.socket) -> None:
        self._folder = folder
        self._cgroup = cgroup
        self._life = life
        self._keep: tuple[str, Path] | None = None

    @property
    def id(self) -> str:
        return self._folder.name

    def keep(self, name: str, place: Path) -> None:
        """When cleared, move the sandbox's folder `name` to `place` instead of removing it."""
        self._keep = (name, place)

    def oom_kills(self) -> int | None:
        return self._cgroup.oom_kills() if self._cgroup is not None else None

    async def clear(self) -> None:
        """Wait until the sandbox has ended, then remove what it left."""
        await self._ended()
        await asyncio.to_thread(self._remove)

    async def _ended(self) -> None:
        """The keeper holds `life` until init, and so every process, is gone."""
        self._life.setblocking(False)
        loop = asyncio.get_running_loop()
        keeper = 0
        with self._life, contextlib.suppress(OSError):
            for patience in (_END_SECONDS, _END_SECONDS):
                try:
                    async with asyncio.timeout(patience):
                        while word := await loop.sock_recv(self._life, 64):
                            keeper = int(word)
                        return
                except TimeoutError:
                    if keeper:
                        os.kill(keeper, 9)

    def _remove(self) -> None:
        if self._cgroup is not None:
            self._cgroup.remove()
        if self._keep is not None:
            name, place = self._keep
            with contextlib.suppress(FileExistsError, OSError):
                (self._folder / name).rename(place)
        remove_folder(self._folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder whose writers are dying or dead."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while True:
        try:
            parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                remove_tree(parent, folder.name)
            finally:
                os.close(parent)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def reap(home: Home) -> list[str]:
    """Remove what dead owners left behind; the ids of the sandboxes removed."""
    removed: list[str] = []
    for folder in _dead(home):
        meta = _read_meta(folder)
        if meta is not None:
            Cgroup({name: Path(path) for name, path in meta.cgroups.items()}).remove()
        remove_folder(folder)
        removed.append(folder.name)
    return removed


def _dead(home: Home) -> Iterator[Path]:
    now = time.time()
    for folder in sorted(home.sandboxes.iterdir()):
        meta = _read_meta(folder)
        if meta is None:
            with contextlib.suppress(FileNotFoundError):
                if now - folder.stat().st_mtime > _HALF_MADE_SECONDS:
                    yield folder
        elif not is_alive(meta.labels.owner) or (
            meta.labels.owner.host != socket.gethostname() and meta.labels.expires < now
        ):
            yield folder
    for half_made in home.bases.glob(".*"):
        with contextlib.suppress(FileNotFoundError):
            if now - half_made.stat().st_mtime > _HALF_MADE_SECONDS:
                yield half_made


def _read_meta(folder: Path) -> Meta | None:
    try:
        return msgspec.json.decode((folder / "meta.json").read_bytes(), type=Meta)
    except (OSError, msgspec.MsgspecError):
        return None
