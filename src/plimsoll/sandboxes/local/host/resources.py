"""The host resources of a sandbox: its folder, its control groups, and its liveness socket.

They are released by the sandbox itself, or after the death of its owner by the next process that
starts. The name of a folder that is being created or removed contains its owner, since such a
folder may lack `meta.json`. So the leftovers of a killed process can be recognized.
"""

import asyncio
import contextlib
import functools
import socket
from pathlib import Path

import msgspec

from plimsoll.core.ids import Labels, Owner
from plimsoll.sandboxes.local.host.cgroups import Cgroup
from plimsoll.sandboxes.local.host.processes import kill_survivors
from plimsoll.sandboxes.local.host.removal_queue import RemovalQueue

__all__ = [
    "HostResources",
    "SandboxMeta",
    "read_meta",
    "sandbox_id",
    "staging_owner",
    "staging_path",
]

_EXIT_SECONDS = 10.0
_SEPARATOR = "@"


def staging_path(folder: Path, owner: Owner) -> Path:
    """The path of a folder while it is created or removed. The final path is always complete."""
    name = _SEPARATOR.join((folder.name, owner.host, str(owner.pid), owner.started))
    return folder.with_name(f".{name}")


class SandboxMeta(msgspec.Struct, frozen=True):
    """`meta.json` in the folder of a sandbox. It is written before anything else."""

    labels: Labels
    cgroups: dict[str, str]


class HostResources:
    """The folder, control groups and liveness socket of one sandbox."""

    def __init__(
        self,
        folder: Path,
        owner: Owner,
        cgroup: Cgroup,
        liveness: socket.socket,
        removals: RemovalQueue,
    ) -> None:
        self._removals = removals
        self._folder = folder
        self._owner = owner
        self._cgroup = cgroup
        self._liveness = liveness
        self._keep: tuple[str, Path] | None = None

    @property
    def id(self) -> str:
        return self._folder.name

    def keep(self, name: str, target: Path) -> None:
        """On release, move the sandbox's folder `name` to `target` instead of removing it."""
        self._keep = (name, target)

    def oom_kills(self) -> int | None:
        return self._cgroup.oom_kills()

    async def release(self) -> None:
        """Wait until the sandbox has ended, then queue its folder for removal.

        Raises `SandboxError`, and removes nothing, if a process of it does not die.
        """
        with self._liveness:
            ended, monitor = await self._wait_for_end()
            stage = functools.partial(self._stage_removal, ended, monitor)
            try:
                staged = await asyncio.to_thread(stage)
            except OSError:
                # For example no free descriptor: close does not wait for one.
                self._removals.remove_later(self._folder, stage)
                raise
        await self._removals.remove(staged)

    async def _wait_for_end(self) -> tuple[bool, int | None]:
        """Wait until the monitor ends.

        Returns whether it reported the end of init, and its pid if it is still alive.
        """
        self._liveness.setblocking(False)
        loop = asyncio.get_running_loop()
        ended, monitor = False, None
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                while message := await loop.sock_recv(self._liveness, 64):
                    ended = message == b"ended"
                    monitor = monitor if ended else int(message)
        except TimeoutError:
            return False, monitor
        except OSError:
            return False, None
        return ended, None

    def _stage_removal(self, ended: bool, monitor: int | None) -> Path:
        """Remove the control groups, and move the folder to its staging path for removal."""
        if not ended:
            kill_survivors(self.id, monitor)
        self._cgroup.remove()
        if self._keep is not None:
            name, target = self._keep
            with contextlib.suppress(OSError):  # it exists, or the builder reports its absence
                (self._folder / name).rename(target)
        staged = staging_path(self._folder, self._owner)
        with contextlib.suppress(FileNotFoundError):
            self._folder.rename(staged)
        return staged


def read_meta(folder: Path) -> SandboxMeta | None:
    """The `meta.json` of a folder. None if it is missing or damaged."""
    try:
        return msgspec.json.decode((folder / "meta.json").read_bytes(), type=SandboxMeta)
    except (OSError, msgspec.MsgspecError):
        return None


def staging_owner(folder: Path) -> Owner | None:
    """The owner in the name of a staging path. None for any other folder."""
    match folder.name.split(_SEPARATOR):
        case _, host, pid, started if pid.isdecimal():
            return Owner(host, int(pid), started)
        case _:
            return None


def sandbox_id(folder: Path) -> str:
    """The sandbox id of a folder, which may be a staging path."""
    return folder.name if staging_owner(folder) is None else folder.name.split(_SEPARATOR)[0][1:]
