"""The home of the local backend: its folder on the host.

HOME/bases/KEY/            the root skeleton of sandboxes on the host's own system
HOME/layers/KEY/NAME/      one instruction of a Dockerfile, a folder for each overlay
HOME/sandboxes/ID/         meta.json, and the files of the sandbox unless they are in memory
HOME/mounts/               empty; each sandbox mounts a tmpfs over it for its mount points
HOME/locks/KEY             held while a layer or, on Docker, an image is built
HOME/resolv.conf           name servers for sandboxes on a root file system of the config
HOME/closed-KEY.json       the last scan for private files of the host
HOME/docker/               the init of containers, if the Docker daemon sees this host's files

An agent can create any file with any owner and mode of its sandbox, such as a set-user-ID program
of root below HOME/sandboxes. So bases, layers, sandboxes and locks are closed to all other users
of the host. The mode of a folder that Plimsoll did not create is never changed.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.host.ext4 import spread_over_block_groups

__all__ = ["Home"]

_OTHERS = 0o077
"""Mode bits that a folder with files of agents must not have."""


@dataclass(frozen=True, slots=True)
class Home:
    """The backend's folder on the host."""

    path: Path

    @classmethod
    def find(cls, path: Path | None) -> "Home":
        """The given folder, `PLIMSOLL_HOME` or the default folder, which may not exist yet."""
        return cls((path or _default_path()).expanduser().absolute())

    @classmethod
    def open(cls, path: Path | None) -> "Home":
        """Like `find`, and create its folders."""
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
                "set PLIMSOLL_HOME to a writable folder"
            ) from None
        return home

    def _close_to_others(self) -> None:
        """Refuse a folder that other users can enter, or that belongs to another user.

        If all four folders exist and belong to this user, Plimsoll created them, and their mode
        is corrected instead.
        """
        found = {folder: folder.stat() for folder in self._folders if folder.exists()}
        is_ours = all(state.st_uid == os.geteuid() for state in found.values())
        created_by_us = is_ours and len(found) == len(self._folders)
        for folder, state in found.items():
            mode = stat.S_IMODE(state.st_mode)
            if state.st_uid == os.geteuid() and not mode & _OTHERS:
                continue
            if not created_by_us:
                raise SandboxUnavailable(
                    f"{folder} is open to other users of this host (mode {mode:04o}, user "
                    f"{state.st_uid}), but it holds files of agents: chmod 700 {folder} "
                    "if it belongs to Plimsoll, or set PLIMSOLL_HOME to another folder"
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
    """Create a folder that the Docker daemon can reach, whatever the umask."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            return  # another process created it
        folder.chmod(0o755)


def _default_path() -> Path:
    if given := os.environ.get("PLIMSOLL_HOME"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/plimsoll")
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "plimsoll"
