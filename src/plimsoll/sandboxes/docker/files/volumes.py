"""Folders of this host for a daemon that cannot see them: copied once into named volumes.

* A volume is named after its content.
* It is complete when its root folder has the mode `_COMPLETE`, which is the last entry of the tar
  that fills it. Incomplete volumes are not used.
* One process at a time fills it. Container names are unique on a daemon, so a container's name is
  the lock.
* While a backend uses a volume, a container that never runs refers to it, so that pruning keeps
  it. A prune may remove that container too, so each sandbox's volumes are checked before it starts.
"""

import asyncio
import logging
import tarfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.ids import Labels, short_id
from plimsoll.sandboxes.docker.daemon.api import PUT_SECONDS, Daemon
from plimsoll.sandboxes.docker.daemon.errors import DaemonError, ResourceRemoved
from plimsoll.sandboxes.docker.daemon.responses import ContainerInspect
from plimsoll.sandboxes.docker.files.tar_stream import Tar, tar_stream
from plimsoll.sandboxes.docker.labels import from_docker, to_docker
from plimsoll.sandboxes.host.owners import is_alive, this_process

__all__ = ["ContentVolumes", "WriteTar", "check_volumes"]

log = logging.getLogger(__name__)

_MOUNT_POINT = "/held"
_COMPLETE = 0o555
_VOLUME_LIFETIME = 30 * 24 * 3600.0
_FILL_SECONDS = PUT_SECONDS
_RELEASE_SECONDS = 10.0

WriteTar = Callable[[Tar, str], None]
"""Writes files into a tar, below a folder of this name."""


class ContentVolumes:
    """The volumes of one backend."""

    def __init__(self, daemon: Daemon, image: Callable[[], Awaitable[str]]) -> None:
        self._daemon = daemon
        self._image = image
        """Ensures the image of the containers that never run; returns its name."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._holders: list[str] = []

    async def ensure(self, name: str, write: WriteTar) -> None:
        """Wait until the volume of this name has the files that `write` adds to a tar."""
        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._ensure(name, write))
        task = self._tasks[name]
        await asyncio.wait([task])
        if task.cancelled() or task.exception() is not None:
            self._tasks.pop(name, None)  # the next call tries again
        task.result()

    def forget(self, name: str) -> None:
        """Forget a volume, so that the next `ensure` checks it again."""
        if name in self._tasks and self._tasks[name].done():
            del self._tasks[name]

    async def close(self) -> None:
        """Release the volumes; they stay for the next run."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        for holder in self._holders:
            try:
                await self._daemon.remove(holder)
            except SandboxError as error:
                log.warning("container %s could not be removed: %s", holder, error)
        self._holders.clear()

    async def _ensure(self, name: str, write: WriteTar) -> None:
        holder = await self._hold(name)
        deadline = time.monotonic() + _FILL_SECONDS
        while not await _is_complete(self._daemon, holder, _MOUNT_POINT):
            if await self._fill(name, write):
                continue
            if time.monotonic() > deadline:
                raise SandboxUnavailable(
                    f"the volume {name} was not filled within {_FILL_SECONDS:.0f} s by the process "
                    f"that holds the container {_lock(name)}; remove that container"
                )
            await asyncio.sleep(0.2)

    async def _hold(self, name: str) -> str:
        """Create a volume if it is missing, and a container that refers to it; returns its name.

        If the volume is removed in between, the daemon creates one without labels, which would
        never be reaped. Such a volume is removed and created again.
        """
        deadline = time.monotonic() + _RELEASE_SECONDS
        while True:
            await self._daemon.create_volume(name, to_docker(_labels(name), shared=True))
            holder = f"plimsoll-holds-{short_id()}"
            self._holders.append(holder)
            await run_to_completion(self._create_holder(name, holder, _VOLUME_LIFETIME))
            held = await self._daemon.volume(name)
            is_ours = held is not None and from_docker(held.labels) is not None
            if is_ours or time.monotonic() > deadline:
                return holder
            await self._daemon.remove(holder)
            self._holders.remove(holder)
            with suppress(DaemonError):
                await self._daemon.remove_volume(name)
            await asyncio.sleep(0.2)

    async def _create_holder(self, volume: str, container: str, life: float) -> None:
        """Create a container that never runs, with the volume mounted."""
        mount = {"Type": "volume", "Source": volume, "Target": _MOUNT_POINT}
        config = {
            "Image": await self._image(),
            "Entrypoint": ["/none"],
            "Labels": to_docker(_labels(volume, life)),
            "HostConfig": {"NetworkMode": "none", "Mounts": [mount]},
        }
        await self._daemon.create_container(config, container)

    async def _fill(self, name: str, write: WriteTar) -> bool:
        """Fill the volume if no other process does. Returns False if the caller has to wait."""
        lock = _lock(name)
        try:
            await run_to_completion(self._create_holder(name, lock, _FILL_SECONDS))
        except DaemonError as error:
            if error.status != 409:
                raise
            return await self._break_lock(await self._daemon.inspect(lock))
        try:
            async with asyncio.timeout(_FILL_SECONDS), tar_stream(_contents(write)) as tar:
                await self._daemon.put_archive(lock, "/", tar)
        except TimeoutError:
            raise SandboxUnavailable(
                f"the volume {name} could not be filled within {_FILL_SECONDS:.0f} s"
            ) from None
        finally:
            await run_to_completion(self._daemon.remove(lock))
        return True

    async def _break_lock(self, held: ContainerInspect | None) -> bool:
        """Remove the lock of a process that died while filling the volume."""
        if held is None:
            return True
        labels = from_docker(held.config.labels)
        if labels is not None and is_alive(labels.owner) and labels.expires > time.time():
            return False
        return await self._daemon.remove(held.id)


async def check_volumes(daemon: Daemon, container: str, volumes: Mapping[str, str]) -> None:
    """Raise `ResourceRemoved` if a volume of a new container is incomplete.

    `volumes` are names by mount point. The container refers to them from now on.
    """
    lost = [name for at, name in volumes.items() if not await _is_complete(daemon, container, at)]
    if lost:
        raise ResourceRemoved(str(daemon.endpoint), *lost)


async def _is_complete(daemon: Daemon, container: str, mount_point: str) -> bool:
    # A link that the image has at this path is followed.
    found = await daemon.stat_archive(container, f"{mount_point}/.")
    return found is not None and found.mode & 0o777 == _COMPLETE


def _labels(ticket: str, life: float = _VOLUME_LIFETIME) -> Labels:
    return Labels("shared", ticket, this_process(), time.time() + life)


def _lock(name: str) -> str:
    return f"{name}-filling"


def _contents(write: WriteTar) -> Callable[[Tar], None]:
    """The tar that fills a volume; its last entry sets the mode that marks completion."""

    def contents(tar: Tar) -> None:
        write(tar, _MOUNT_POINT.strip("/"))
        top = tarfile.TarInfo(_MOUNT_POINT.strip("/"))
        top.type, top.mode = tarfile.DIRTYPE, _COMPLETE
        tar.addfile(top)

    return contents
