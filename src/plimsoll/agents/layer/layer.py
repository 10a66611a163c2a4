"""A layer: a folder with parts of agents that were installed once, and its manifest.

Sandboxes see each part read-only at its own place. Nothing is installed in them.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from plimsoll.agents.layer.components import Component
from plimsoll.core.errors import UsageError
from plimsoll.sandboxes.protocol import Mount

__all__ = ["MANIFEST", "AgentLayer", "BakedComponent", "read_manifest", "write_manifest"]

MANIFEST = "agents.json"


class BakedComponent(msgspec.Struct, frozen=True):
    """A part as it lies in a layer."""

    version: str
    packages: tuple[str, ...]
    digest: str
    size: int
    python: str = ""
    """The version of Python that it fits, where it fits one only."""


def read_manifest(folder: Path) -> dict[str, BakedComponent]:
    """The parts of a layer by name; none where the folder is not a layer yet."""
    file = folder / MANIFEST
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, BakedComponent])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} is not the manifest of a layer: {error}") from None


def write_manifest(folder: Path, parts: dict[str, BakedComponent]) -> None:
    """Replace the manifest in one rename."""
    made = folder / f"{MANIFEST}.new"
    made.write_bytes(msgspec.json.format(msgspec.json.encode(parts, order="sorted")) + b"\n")
    made.chmod(0o644)
    made.rename(folder / MANIFEST)


class AgentLayer:
    """The parts of one agent in a layer. `UsageError` where one is missing."""

    def __init__(self, folder: Path, agent: str, parts: Iterable[Component]) -> None:
        self._folder = folder.absolute()
        found = read_manifest(folder)
        self._parts: dict[str, BakedComponent] = {}
        for part in parts:
            if part.name not in found or not (folder / part.name).is_dir():
                raise UsageError(
                    f"{folder} has no {part.name}: plimsoll bake {agent} --to {folder}"
                )
            self._parts[part.name] = found[part.name]

    def mounts(self, parts: Iterable[Component]) -> tuple[Mount, ...]:
        return tuple(
            Mount(self._folder / part.name, part.at, key=self._parts[part.name].digest)
            for part in parts
        )

    def version(self, part: Component) -> str:
        """The version that was baked, which may be another than the usual one."""
        return self._parts[part.name].version

    def python(self, part: Component) -> str:
        """The version of Python that a part was baked for; "" where any will do."""
        return self._parts[part.name].python
