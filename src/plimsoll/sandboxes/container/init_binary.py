"""The static init that a container starts with: one file for each kind of machine."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from plimsoll.core.errors import SandboxUnsupported

__all__ = ["InitBinary", "init_binary"]

_FOLDER = Path(__file__).parent / "init" / "bin"
_PREFIX = "plimsoll-init-"
_ALSO_CALLED = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class InitBinary:
    """A file of this package, and the digest of what is in it."""

    path: Path
    digest: str


@lru_cache
def init_binary(machine: str) -> InitBinary:
    """The init for a machine, as the engine or `uname -m` names it."""
    path = _FOLDER / f"{_PREFIX}{_ALSO_CALLED.get(machine, machine)}"
    known = sorted(file.name.removeprefix(_PREFIX) for file in _FOLDER.glob(f"{_PREFIX}*"))
    if path.name.removeprefix(_PREFIX) not in known:
        raise SandboxUnsupported(
            f"there is no sandbox init for {machine} machines, only for "
            f"{', '.join(known) or 'none'}: use an engine on one of these"
        )
    return InitBinary(path, hashlib.sha256(path.read_bytes()).hexdigest())
