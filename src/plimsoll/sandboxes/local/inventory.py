"""The inventory of the local backend: all sandboxes in a home, of every process."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels, Owner
from plimsoll.sandboxes.host.owners import is_alive, is_here
from plimsoll.sandboxes.local.host.cgroups import Cgroup
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.processes import find_monitors, kill_sandbox, kill_survivors
from plimsoll.sandboxes.local.host.resources import (
    read_meta,
    sandbox_id,
    staging_owner,
    staging_path,
)
from plimsoll.sandboxes.reaper import Resource, ResourceKind
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = ["LocalInventory"]

_UNOWNED_SECONDS = 60.0
"""Age at which an incomplete folder without an owner in its name expires."""
_OWNED_SECONDS = 3600.0


class LocalInventory:
    """Lists and removes sandboxes. Layers and bases stay."""

    name = "local"

    def __init__(self, home: Home) -> None:
        self._home = home

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    async def items(self) -> Sequence[Resource]:
        try:
            return await asyncio.to_thread(_list_sandboxes, self._home)
        except OSError as error:
            raise SandboxUnavailable(
                f"{error.filename or self._home.path} cannot be read: {error.strerror}"
            ) from None

    async def remove(self, resource: Resource) -> None:
        try:
            await asyncio.to_thread(_remove_sandbox, self._home, resource)
        except OSError as error:
            raise SandboxUnavailable(
                f"{error.filename or resource.id} cannot be removed: {error.strerror}"
            ) from None


def _list_sandboxes(home: Home) -> list[Resource]:
    """The sandboxes of a home, of every owner, and incomplete folders."""
    metas = {folder: read_meta(folder) for folder in _entries(home.sandboxes)}
    owners = {meta.labels.owner for meta in metas.values() if meta is not None}
    monitors = find_monitors(o.pid for o in owners if is_here(o) and is_alive(o))
    found: list[Resource | None] = [
        _incomplete_folder("sandbox", folder)
        if meta is None
        else Resource(
            "sandbox",
            sandbox_id(folder),
            meta.labels,
            state="running" if sandbox_id(folder) in monitors else "ended",
            created=_created_at(folder),
        )
        for folder, meta in metas.items()
    ]
    found += (
        _incomplete_folder("image", f) for f in _entries(home.bases) if f.name.startswith(".")
    )
    return [resource for resource in found if resource is not None]


def _remove_sandbox(home: Home, resource: Resource) -> None:
    """Kill a sandbox of any owner, and remove its resources."""
    folder = (home.sandboxes if resource.kind == "sandbox" else home.bases) / resource.id
    staged = staging_path(folder, resource.labels.owner)
    meta = read_meta(folder) or read_meta(staged)
    if meta is not None:
        owner = meta.labels.owner
        if is_here(owner) and is_alive(owner):
            monitor = find_monitors([owner.pid]).get(resource.id)
            if monitor is not None:
                kill_sandbox(monitor)
        kill_survivors(resource.id)
        Cgroup({name: Path(path) for name, path in meta.cgroups.items()}).remove()
    with contextlib.suppress(FileNotFoundError):
        folder.rename(staged)
    remove_folder(staged)


def _incomplete_folder(kind: ResourceKind, folder: Path) -> Resource | None:
    """A folder without `meta.json`, whose name may contain the owner. None if it is gone."""
    created = _created_at(folder)
    if created is None:
        return None
    owner = staging_owner(folder)
    expires = created + (_UNOWNED_SECONDS if owner is None else _OWNED_SECONDS)
    labels = Labels("", "", owner or Owner("", 0, ""), expires)
    return Resource(kind, sandbox_id(folder), labels, state="incomplete", created=created)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _created_at(folder: Path) -> float | None:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return None
