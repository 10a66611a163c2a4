"""An image of the local backend: a base, layers on it, and what its commands start with."""

from dataclasses import dataclass, field
from pathlib import Path

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.local.base import Base
from plimsoll.sandboxes.local.home import Home

__all__ = ["LocalImage", "layer_folder", "overlay_name"]

_MOST_LAYERS = 120
"""An overlay's options must fit in one page of memory."""


def overlay_name(target: str) -> str:
    """The folder name that stands for an overlay's target."""
    return target.strip("/").replace("/", "-") or "root"


def layer_folder(layer: str, target: str) -> str:
    """A layer's folder for a target, relative to the backend's home."""
    return f"layers/{layer}/{overlay_name(target)}"


@dataclass(frozen=True, slots=True)
class LocalImage:
    """Immutable; each instruction of a Dockerfile makes the next from the last."""

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
        """For each overlay its folders, topmost first; layers as paths relative to home."""
        if len(self.layers) > _MOST_LAYERS:
            raise BuildError(
                f"the image has {len(self.layers)} layers; the local backend stacks at most "
                f"{_MOST_LAYERS}: join RUN and COPY instructions"
            )
        stacks: dict[str, list[str]] = {}
        for target, base in self.base.lowers.items():
            own = [layer_folder(layer, target) for layer in reversed(self.layers)]
            present = [folder for folder in own if Path(home.path, folder).is_dir()]
            stacks[target] = [*present, *(_escape(folder) for folder in base)]
        return stacks


def _escape(path: str) -> str:
    """A path as an overlay option takes it."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
