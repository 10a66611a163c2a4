"""The static init binary that containers start with, one file for each machine type."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from plimsoll.core.errors import SandboxUnsupported

__all__ = ["InitBinary", "init_binary"]

_FOLDER = Path(__file__).parent / "init" / "bin"
_PREFIX = "plimsoll-init-"
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class InitBinary:
    """An init binary of this package, with its digest."""

    path: Path
    digest: str


@lru_cache
def init_binary(machine: str) -> InitBinary:
    """The init for a machine, named as by Docker or `uname -m`."""
    path = _FOLDER / f"{_PREFIX}{_ALIASES.get(machine, machine)}"
    machines = sorted(file.name.removeprefix(_PREFIX) for file in _FOLDER.glob(f"{_PREFIX}*"))
    if path.name.removeprefix(_PREFIX) not in machines:
        raise SandboxUnsupported(
            f"there is no sandbox init for {machine} machines, only for "
            f"{', '.join(machines) or 'none'}: use a host of one of these"
        )
    return InitBinary(path, hashlib.sha256(path.read_bytes()).hexdigest())
