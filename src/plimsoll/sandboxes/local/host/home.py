"""Where the local backend keeps things on the host.

HOME/bases/KEY/            a root's skeleton: what a sandbox on the host's own system sees
HOME/layers/KEY/NAME/      one instruction of a Dockerfile, a folder for each overlay
HOME/sandboxes/ID/         meta.json, and what the sandbox wrote unless that is kept in memory
HOME/mounts/               empty; each sandbox mounts a tmpfs for its mount points over it
HOME/locks/KEY             held while a layer or, on Docker, an image is being made

An agent can make any file, with any owner and mode that its sandbox has: a program that runs as
root for whoever starts it lies below HOME/sandboxes then. So these four folders are closed to all
other users of the host. The mode of a folder that Plimsoll did not make is never changed.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.host.ext4 import spread_over_block_groups

__all__ = ["Home"]

_OPEN = 0o077
"""What others may not have of a folder that agents' files lie in."""


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
            _make(home.path)
            home._close_to_others()
            for folder in home._folders:
                folder.mkdir(mode=0o700, exist_ok=True)
            home.mounts.mkdir(mode=0o700, exist_ok=True)
            spread_over_block_groups(home.sandboxes)
        except OSError as error:
            raise SandboxUnavailable(
                f"the local backend cannot keep its files in {home.path}: {error.strerror}; "
                "set PLIMSOLL_HOME to a folder that can be written"
            ) from None
        return home

    def _close_to_others(self) -> None:
        """Refuse a folder that others could look into, or that belongs to somebody else.

        Earlier versions made all four open. Where all four are there and are this user's, they
        are Plimsoll's, and are closed.
        """
        found = {folder: folder.stat() for folder in self._folders if folder.exists()}
        mine = all(state.st_uid == os.geteuid() for state in found.values())
        made_by_us = mine and len(found) == len(self._folders)
        for folder, state in found.items():
            mode = stat.S_IMODE(state.st_mode)
            if state.st_uid == os.geteuid() and not mode & _OPEN:
                continue
            if not made_by_us:
                raise SandboxUnavailable(
                    f"{folder} is open to other users of this host (mode {mode:04o}, user "
                    f"{state.st_uid}), and files of agents would lie in it: chmod 700 {folder} "
                    "if it is Plimsoll's own, or set PLIMSOLL_HOME to another folder"
                )
            folder.chmod(0o700)

    @property
    def _folders(self) -> tuple[Path, ...]:
        return self.bases, self.layers, self.sandboxes, self.locks

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
    def mounts(self) -> Path:
        return self.path / "mounts"

    @property
    def locks(self) -> Path:
        return self.path / "locks"


def _make(folder: Path) -> None:
    """Make a folder that Docker's engine can reach, whatever this process's umask is."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            return  # another process was quicker
        folder.chmod(0o755)


def _usual_place() -> Path:
    if given := os.environ.get("PLIMSOLL_HOME"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/plimsoll")
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "plimsoll"
