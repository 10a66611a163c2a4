"""Where the local backend keeps things on the host.

HOME/bases/KEY/            a root's skeleton: what a sandbox on the host's own system sees
HOME/layers/KEY/NAME/      one instruction of a Dockerfile, a folder for each overlay
HOME/sandboxes/ID/         meta.json, the mount point, and what the sandbox wrote
HOME/locks/KEY             held while a layer or, on Docker, an image is being made
"""

import os
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import SandboxUnavailable

__all__ = ["Home"]


@dataclass(frozen=True, slots=True)
class Home:
    """The backend's folder on the host."""

    path: Path

    @classmethod
    def find(cls, path: Path | None) -> "Home":
        """The given folder, `PLIMSOLL_HOME`, or the usual place, whether it is there or not."""
        return cls((path or _usual_place()).expanduser().absolute())

    @classmethod
    def open(cls, path: Path | None) -> "Home":
        """The same, made if it is not there."""
        home = cls.find(path)
        try:
            for folder in (home.bases, home.layers, home.sandboxes, home.locks):
                folder.mkdir(parents=True, exist_ok=True)
            home.path.chmod(0o755)
        except OSError as error:
            raise SandboxUnavailable(
                f"the local backend cannot keep its files in {home.path}: {error.strerror}; "
                "set PLIMSOLL_HOME to a folder that can be written"
            ) from None
        return home

    @property
    def bases(self) -> Path:
        return self.path / "bases"

    @property
    def layers(self) -> Path:
        return self.path / "layers"

    @property
    def sandboxes(self) -> Path:
        return self.path / "sandboxes"

    @property
    def locks(self) -> Path:
        return self.path / "locks"


def _usual_place() -> Path:
    if given := os.environ.get("PLIMSOLL_HOME"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/plimsoll")
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "plimsoll"
