"""Files of this host for an engine that cannot see them: copied once, into named volumes.

A volume is named after its content. It is complete once its topmost folder has the mode that
comes last in what fills it. Nobody uses one before, and only one process at a time fills it: the
engine gives a name to one container only, so a container's name is the lock. While a backend
uses a volume, a container that never runs holds on to it, so that nobody removes it. Who prunes
an engine may remove that container too: so each sandbox's volumes are looked at before it starts.
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
"""Puts files into a tar, below a folder of this name."""


class ContentVolumes:
    """The volumes that one backend uses."""

    def __init__(self, engine: Daemon, image: Callable[[], Awaitable[str]]) -> None:
        self._engine = engine
        self._image = image
        """Makes sure of the image that containers which never run are made from."""
        self._wanted: dict[str, asyncio.Task[None]] = {}
        self._holders: list[str] = []

    async def ensure(self, name: str, make: WriteTar) -> None:
        """Wait until a volume of this name has what `make` puts into a tar."""
        if name not in self._wanted:
            self._wanted[name] = asyncio.create_task(self._ensure(name, make))
        task = self._wanted[name]
        await asyncio.wait([task])
        if task.cancelled() or task.exception() is not None:
            self._wanted.pop(name, None)  # the next one tries again
        task.result()

    def forget(self, name: str) -> None:
        """It is not what it was: the next one who wants it makes sure of it again."""
        if name in self._wanted and self._wanted[name].done():
            del self._wanted[name]

    async def close(self) -> None:
        """Let go of the volumes, which stay for the next run."""
        for task in self._wanted.values():
            task.cancel()
        if self._wanted:
            await asyncio.wait(self._wanted.values())
        for holder in self._holders:
            try:
                await self._engine.remove(holder)
            except SandboxError as error:
                log.warning("the container %s is left: %s", holder, error)
        self._holders.clear()

    async def _ensure(self, name: str, make: WriteTar) -> None:
        holder = await self._hold(name)
        deadline = time.monotonic() + _FILL_SECONDS
        while not await _is_complete(self._engine, holder, _MOUNT_POINT):
            if await self._fill(name, make):
                continue
            if time.monotonic() > deadline:
                raise SandboxUnavailable(
                    f"the volume {name} is not filled after {_FILL_SECONDS:.0f} s by the process "
                    f"whose container {_lock(name)} is; remove that container"
                )
            await asyncio.sleep(0.2)

    async def _hold(self, name: str) -> str:
        """Hold on to a volume, made if there is none; the container that does.

        Where a container wants a volume that is missing the engine makes one, without labels:
        nobody would ever reap it. It goes as soon as nobody uses it, and is made by us.
        """
        deadline = time.monotonic() + _RELEASE_SECONDS
        while True:
            await self._engine.create_volume(name, to_docker(_labels(name), shared=True))
            holder = f"plimsoll-holds-{short_id()}"
            self._holders.append(holder)
            await run_to_completion(self._make(name, holder, _VOLUME_LIFETIME))
            held = await self._engine.volume(name)
            is_ours = held is not None and from_docker(held.labels) is not None
            if is_ours or time.monotonic() > deadline:
                return holder
            await self._engine.remove(holder)
            self._holders.remove(holder)
            with suppress(DaemonError):
                await self._engine.remove_volume(name)
            await asyncio.sleep(0.2)

    async def _make(self, volume: str, container: str, life: float) -> None:
        """A container that never runs, with the volume in it."""
        mount = {"Type": "volume", "Source": volume, "Target": _MOUNT_POINT}
        config = {
            "Image": await self._image(),
            "Entrypoint": ["/none"],
            "Labels": to_docker(_labels(volume, life)),
            "HostConfig": {"NetworkMode": "none", "Mounts": [mount]},
        }
        await self._engine.create_container(config, container)

    async def _fill(self, name: str, make: WriteTar) -> bool:
        """Fill it, or see that another does; False where there is nothing to do but wait."""
        lock = _lock(name)
        try:
            await run_to_completion(self._make(name, lock, _FILL_SECONDS))
        except DaemonError as error:
            if error.status != 409:
                raise
            return await self._break_lock(await self._engine.inspect(lock))
        try:
            async with asyncio.timeout(_FILL_SECONDS), tar_stream(_contents(make)) as tar:
                await self._engine.put_archive(lock, "/", tar)
        except TimeoutError:
            raise SandboxUnavailable(
                f"the volume {name} could not be filled within {_FILL_SECONDS:.0f} s"
            ) from None
        finally:
            await run_to_completion(self._engine.remove(lock))
        return True

    async def _break_lock(self, held: ContainerInspect | None) -> bool:
        """Take away the lock of a process that died while it filled the volume."""
        if held is None:
            return True
        labels = from_docker(held.config.labels)
        if labels is not None and is_alive(labels.owner) and labels.expires > time.time():
            return False
        return await self._engine.remove(held.id)


async def check_volumes(engine: Daemon, container: str, volumes: Mapping[str, str]) -> None:
    """Check the volumes of a new container; raise `ResourceRemoved` where one is incomplete.

    `volumes` are the names by the places where they are mounted. From now on the container
    holds on to them.
    """
    lost = [name for at, name in volumes.items() if not await _is_complete(engine, container, at)]
    if lost:
        raise ResourceRemoved(str(engine.endpoint), *lost)


async def _is_complete(engine: Daemon, container: str, place: str) -> bool:
    # What an image may have at this place as a link is followed.
    found = await engine.stat_archive(container, f"{place}/.")
    return found is not None and found.mode & 0o777 == _COMPLETE


def _labels(ticket: str, life: float = _VOLUME_LIFETIME) -> Labels:
    return Labels("shared", ticket, this_process(), time.time() + life)


def _lock(name: str) -> str:
    return f"{name}-filling"


def _contents(make: WriteTar) -> Callable[[Tar], None]:
    """What fills a volume: last of all comes the mode which says that the rest is there."""

    def contents(tar: Tar) -> None:
        make(tar, _MOUNT_POINT.strip("/"))
        top = tarfile.TarInfo(_MOUNT_POINT.strip("/"))
        top.type, top.mode = tarfile.DIRTYPE, _COMPLETE
        tar.addfile(top)

    return contents
