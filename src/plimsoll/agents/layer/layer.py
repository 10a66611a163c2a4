"""The agent layer: a folder with the installed components of agents, and its manifest.

Sandboxes mount each component read-only. Nothing is installed in them.
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
    """A component in a layer, as the manifest describes it."""

    version: str
    packages: tuple[str, ...]
    digest: str
    size: int
    python: str = ""
    """The Python version it works with. "" for any."""


def read_manifest(folder: Path) -> dict[str, BakedComponent]:
    """The components of a layer by name. Empty if the folder is not a layer yet."""
    file = folder / MANIFEST
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, BakedComponent])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} is not the manifest of a layer: {error}") from None


def write_manifest(folder: Path, components: dict[str, BakedComponent]) -> None:
    """Replace the manifest atomically."""
    staging = folder / f"{MANIFEST}.new"
    staging.write_bytes(
        msgspec.json.format(msgspec.json.encode(components, order="sorted")) + b"\n"
    )
    staging.chmod(0o644)
    staging.rename(folder / MANIFEST)


class AgentLayer:
    """The components of one agent in a layer. Raises `UsageError` if one is missing."""

    def __init__(self, folder: Path, agent: str, components: Iterable[Component]) -> None:
        self._folder = folder.absolute()
        found = read_manifest(folder)
        self._components: dict[str, BakedComponent] = {}
        for component in components:
            if component.name not in found or not (folder / component.name).is_dir():
                raise UsageError(
                    f"{folder} has no {component.name}: plimsoll bake {agent} --to {folder}"
                )
            self._components[component.name] = found[component.name]

    def mounts(self, components: Iterable[Component]) -> tuple[Mount, ...]:
        return tuple(
            Mount(
                self._folder / component.name,
                component.path,
                key=self._components[component.name].digest,
            )
            for component in components
        )

    def version(self, component: Component) -> str:
        """The baked version, which may differ from the default one."""
        return self._components[component.name].version

    def python(self, component: Component) -> str:
        """The Python version that a component was baked for. "" for any."""
        return self._components[component.name].python
