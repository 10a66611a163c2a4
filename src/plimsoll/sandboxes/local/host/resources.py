"""What a sandbox leaves on the host, and how it is cleared away: by itself, or by whoever
starts next after its owner died.

A folder that is being made or removed is called by its owner, too: it may lack the note of
whose it is, and a process that is killed at it leaves something that can be told to be its own.
"""

import asyncio
import contextlib
import logging
import socket
from pathlib import Path

import msgspec

from plimsoll.core.ids import Labels, Owner
from plimsoll.sandboxes.host.owners import is_alive, is_here
from plimsoll.sandboxes.local.host.cgroups import Cgroup
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.processes import find_monitors, kill_sandbox, kill_survivors
from plimsoll.sandboxes.local.host.removal_queue import RemovalQueue
from plimsoll.sandboxes.reaper import Resource, ResourceKind
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = ["HostResources", "SandboxMeta", "list_sandboxes", "remove_sandbox", "staging_path"]

log = logging.getLogger(__name__)

_END_SECONDS = 10.0
_HALF_MADE_SECONDS = 60.0
_OWNED_SECONDS = 3600.0
_MARK = "@"


def staging_path(folder: Path, owner: Owner) -> Path:
    """Where a folder is made, and where it goes to be removed, so that it is whole or its own."""
    name = _MARK.join((folder.name, owner.host, str(owner.pid), owner.started))
    return folder.with_name(f".{name}")


class SandboxMeta(msgspec.Struct, frozen=True):
    """`meta.json` of a sandbox's folder, written before anything else of it exists."""

    labels: Labels
    cgroups: dict[str, str]


class HostResources:
    """The host's side of one sandbox: its folder, its groups, and the sign that it lives."""

    def __init__(
        self,
        folder: Path,
        owner: Owner,
        cgroup: Cgroup | None,
        life: socket.socket,
        remover: RemovalQueue,
    ) -> None:
        self._remover = remover
        self._folder = folder
        self._owner = owner
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
        """Wait until the sandbox has ended, then have what it left removed in the background.

        Raises `SandboxError`, and leaves everything, where a process of it does not end.
        """
        with self._life:
            ended, keeper = await self._ended()
            going = await asyncio.to_thread(self._put_away, ended, keeper)
        await self._remover.remove(going)

    async def _ended(self) -> tuple[bool, int | None]:
        """Wait for the keeper to end: whether it saw init end first, or who it is if it lives."""
        self._life.setblocking(False)
        loop = asyncio.get_running_loop()
        ended, keeper = False, None
        try:
            async with asyncio.timeout(_END_SECONDS):
                while word := await loop.sock_recv(self._life, 64):
                    ended = word == b"ended"
                    keeper = keeper if ended else int(word)
        except TimeoutError:
            return False, keeper
        except OSError:
            return False, None
        return ended, None

    def _put_away(self, ended: bool, keeper: int | None) -> Path:
        """Remove the groups and give the folder the name under which it waits to be removed."""
        if not ended:
            kill_survivors(self.id, _END_SECONDS, keeper)
        if self._cgroup is not None:
            self._cgroup.remove()
        if self._keep is not None:
            name, place = self._keep
            with contextlib.suppress(FileExistsError, OSError):
                (self._folder / name).rename(place)
        going = staging_path(self._folder, self._owner)
        with contextlib.suppress(FileNotFoundError):
            self._folder.rename(going)
        return going


def list_sandboxes(home: Home) -> list[Resource]:
    """The sandboxes of a home, those of others too, and what was never finished."""
    metas = {folder: _read_meta(folder) for folder in _entries(home.sandboxes)}
    owners = {meta.labels.owner for meta in metas.values() if meta is not None}
    keepers = find_monitors(o.pid for o in owners if is_here(o) and is_alive(o))
    found: list[Resource | None] = [
        _half_made("sandbox", folder)
        if meta is None
        else Resource(
            "sandbox",
            _id(folder),
            meta.labels,
            state="running" if _id(folder) in keepers else "ended",
            created=_made(folder),
        )
        for folder, meta in metas.items()
    ]
    found += (_half_made("image", f) for f in _entries(home.bases) if f.name.startswith("."))
    return [item for item in found if item is not None]


def remove_sandbox(home: Home, item: Resource) -> None:
    """End a sandbox, whosever it is, and remove what it leaves."""
    folder = (home.sandboxes if item.kind == "sandbox" else home.bases) / item.id
    going = staging_path(folder, item.labels.owner)
    meta = _read_meta(folder) or _read_meta(going)
    if meta is not None:
        owner = meta.labels.owner
        if is_here(owner) and is_alive(owner):
            keeper = find_monitors([owner.pid]).get(item.id)
            if keeper is not None:
                kill_sandbox(keeper)
        kill_survivors(item.id, _END_SECONDS)
        Cgroup({name: Path(path) for name, path in meta.cgroups.items()}).remove()
    _remove(folder, item.labels.owner)


def _remove(folder: Path, owner: Owner) -> None:
    going = staging_path(folder, owner)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(going)
    remove_folder(going)


def _half_made(kind: ResourceKind, folder: Path) -> Resource | None:
    """What lacks the note of whose it is, which its name may tell. None where it is gone."""
    made = _made(folder)
    if made is None:
        return None
    owner = _owner(folder)
    expires = made + (_HALF_MADE_SECONDS if owner is None else _OWNED_SECONDS)
    labels = Labels("", "", owner or Owner("", 0, ""), expires)
    return Resource(kind, _id(folder), labels, state="half made", created=made)


def _owner(folder: Path) -> Owner | None:
    match folder.name.split(_MARK):
        case _, host, pid, started if pid.isdecimal():
            return Owner(host, int(pid), started)
        case _:
            return None


def _id(folder: Path) -> str:
    return folder.name if _owner(folder) is None else folder.name.split(_MARK)[0][1:]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _made(folder: Path) -> float | None:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return None


def _read_meta(folder: Path) -> SandboxMeta | None:
    try:
        return msgspec.json.decode((folder / "meta.json").read_bytes(), type=SandboxMeta)
    except (OSError, msgspec.MsgspecError):
        return None
