"""Images of the local backend: a base, layers on it, and command defaults; the layer cache."""

import functools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from plimsoll.core.errors import BuildError, SandboxUnavailable
from plimsoll.sandboxes.host.locks import process_lock
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.images.base import Base
from plimsoll.sandboxes.single_flight import SingleFlight

__all__ = ["MAX_LAYERS", "LayerCache", "LocalImage", "overlay_name"]

MAX_LAYERS = 120
_MAX_OPTION_BYTES = 3900
"""The mount options of an overlay, its own folders included, must fit in one memory page."""


def overlay_name(target: str) -> str:
    """The folder name of an overlay target."""
    return target.strip("/").replace("/", "-") or "root"


def layer_folder(layer: str, target: str) -> str:
    """A layer's folder for a target, relative to the backend's home."""
    return f"layers/{layer}/{overlay_name(target)}"


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An immutable image. Each instruction of a Dockerfile derives a new one."""

    base: Base
    layers: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/"
    user: str = "root"
    shell: tuple[str, ...] = ("/bin/sh", "-c")

    @property
    def key(self) -> str:
        return self.layers[-1] if self.layers else self.base.key

    def lowers(self, home: Home) -> dict[str, list[str]]:
        """For each overlay its folders, topmost first. Those in the home are relative to it."""
        changed = {layer: _overlays_changed_by(home.layers / layer) for layer in self.layers}
        stacks: dict[str, list[str]] = {}
        for target, base in self.base.lowers.items():
            name = overlay_name(target)
            own = [layer_folder(x, target) for x in reversed(self.layers) if name in changed[x]]
            stacks[target] = [*own, *base]
            if sum(len(os.fsencode(folder)) + 1 for folder in stacks[target]) > _MAX_OPTION_BYTES:
                raise BuildError(
                    f"the image has {len(self.layers)} layers, more than the local backend can "
                    f"stack for {target}: join RUN and COPY instructions"
                )
        return stacks


def _overlays_changed_by(layer: Path) -> frozenset[str]:
    """The overlays that a layer changed. The others need no place in the stack."""
    try:
        return _list_changed(layer, layer.stat().st_ino)
    except FileNotFoundError:
        raise SandboxUnavailable(f"the image's layer {layer} is gone; build it again") from None


@functools.lru_cache(maxsize=4096)
def _list_changed(layer: Path, _inode: int) -> frozenset[str]:
    # A layer never changes, so the result holds for the same folder.
    return frozenset(folder.name for folder in layer.iterdir() if _has_changes(folder))


def _has_changes(folder: Path) -> bool:
    info = folder.stat()
    plain = (info.st_mode & 0o7777, info.st_uid, info.st_gid) == (0o755, os.geteuid(), os.getegid())
    return not plain or any(True for _ in folder.iterdir())


class LayerCache:
    """The layers of a home by key. Concurrent builds of a layer share one."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._builds = SingleFlight[None]()

    async def ensure(self, key: str, make: Callable[[Path], Awaitable[None]]) -> None:
        """Build the layer `key` if it is missing. `make` creates it atomically at the given path.

        Concurrent calls share one build and its failure. The build goes on while one call waits
        for it, and is cancelled with the last.
        """
        if not (self._home.layers / key).is_dir():
            await self._builds.run(key, lambda _: self._make(key, make))

    async def _make(self, key: str, make: Callable[[Path], Awaitable[None]]) -> None:
        path = self._home.layers / key
        async with process_lock(self._home.locks / key):
            if not path.is_dir():
                await make(path)
            if not path.is_dir():
                raise BuildError(f"layer {key} could not be put in {path.parent}")
