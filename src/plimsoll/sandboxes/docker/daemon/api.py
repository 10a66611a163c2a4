"""The calls to a Docker engine that Plimsoll needs, each a line or two; see `client`.

Notices an engine that hangs. One that ends is noticed by itself: its streams end.
"""

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import quote

import msgspec

from plimsoll.core.errors import SandboxError
from plimsoll.sandboxes.docker.daemon.client import (
    CALL_SECONDS,
    Body,
    Client,
    Progress,
)
from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.daemon.responses import (
    ContainerInspect,
    ContainerSummary,
    Created,
    DaemonInfo,
    DiskUsage,
    ImageInspect,
    ImageSummary,
    NetworkInspect,
    NetworkSummary,
    PathStat,
    Volume,
    VolumeList,
)
from plimsoll.sandboxes.docker.images.build_input import quoted

__all__ = ["PUT_SECONDS", "Daemon", "watch_daemon"]

Labels = Mapping[str, str]
PUT_SECONDS = 900.0
"""How long an engine may take to unpack what is put into a container."""
_T = TypeVar("_T")


class _WaitResponse(msgspec.Struct):
    code: int = msgspec.field(name="StatusCode")


class Daemon(Client):
    """One Docker engine. What is not there to be removed counts as removed: False says so."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._info: DaemonInfo | None = None

    async def info(self) -> DaemonInfo:
        """What its host is and can do; asked once."""
        if self._info is None:
            self._info = await self.get("/info", DaemonInfo, "say what it can do")
        return self._info

    # Containers

    async def create_container(self, config: Mapping[str, object], name: str) -> str:
        """Create a container, not yet running; its id."""
        made = await self.post(
            "/containers/create", Created, "create a container", config, {"name": name}
        )
        return made.id

    async def start(self, container: str) -> None:
        await self.call("POST", f"/containers/{container}/start", "start a container")

    async def inspect(self, container: str) -> ContainerInspect | None:
        """How a container is; None where there is none."""
        path = f"/containers/{_quoted(container)}/json"
        return await self._get_or_none(path, ContainerInspect, "inspect a container")

    async def kill(self, container: str, signal: str = "KILL") -> None:
        params = {"signal": signal}
        await self.call("POST", f"/containers/{container}/kill", "kill a container", params=params)

    async def wait(self, container: str, seconds: float) -> int:
        """Wait until a container has ended; its exit code."""
        path = f"/containers/{container}/wait"
        raw = await self.call("POST", path, "wait for a container", seconds=seconds)
        return msgspec.json.decode(raw, type=_WaitResponse).code

    async def remove(self, container: str) -> bool:
        """Kill and remove a container with its own volumes."""
        params = {"force": "1", "v": "1"}
        path = f"/containers/{container}"
        return await self._remove(path, "remove a container", params)

    async def containers(self, *labels: str, all: bool = True) -> list[ContainerSummary]:
        """Containers with all these labels, `key` or `key=value`; ended ones too with `all`."""
        params = {"all": "1" if all else "0", "filters": _filters(label=labels)}
        return await self.get("/containers/json", list[ContainerSummary], "list containers", params)

    # Files of a container

    async def put_archive(self, container: str, path: str, tar: Body) -> None:
        """Unpack a tar into a folder of a container, running or not."""
        where = f"/containers/{container}/archive"
        doing = f"put files into {path} of a container"
        async with self.stream(
            "PUT", where, doing, params={"path": path}, body=tar, seconds=PUT_SECONDS
        ) as response:
            await response.read()

    @asynccontextmanager
    async def get_archive(
        self, container: str, path: str
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """What stands at a path of a container, as the pieces of a tar."""
        where = f"/containers/{container}/archive"
        doing = f"read {path} of a container"
        async with self.stream("GET", where, doing, params={"path": path}) as response:
            yield response.content.iter_any()

    async def stat_archive(self, container: str, path: str) -> PathStat | None:
        """What stands at a path of a container; None where nothing does."""
        where = f"/containers/{container}/archive"
        doing = f"look at {path} of a container"
        try:
            async with self.stream(
                "HEAD", where, doing, params={"path": path}, seconds=CALL_SECONDS
            ) as response:
                stat = base64.b64decode(response.headers["X-Docker-Container-Path-Stat"])
                return msgspec.json.decode(stat, type=PathStat)
        except DaemonError as error:
            if error.status == 404:
                return None
            raise

    # Images

    async def image(self, name: str) -> ImageInspect | None:
        """An image by its name or id; None where the engine does not have it."""
        return await self._get_or_none(
            f"/images/{_quoted(name)}/json", ImageInspect, "inspect an image"
        )

    async def images(self, *labels: str, all: bool = False) -> list[ImageSummary]:
        """Images with all these labels; with `all` also those that only others are built on."""
        params = {"all": "1" if all else "0", "filters": _filters(label=labels)}
        return await self.get("/images/json", list[ImageSummary], "list images", params)

    async def tag(self, image: str, name: str) -> None:
        """Give an image a name, `repository:tag`."""
        repository, _, tag = name.rpartition(":")
        params = {"repo": repository, "tag": tag}
        await self.call("POST", f"/images/{_quoted(image)}/tag", "tag an image", params=params)

    async def remove_image(self, name: str, *, force: bool = False) -> bool:
        """Take away a name, or an image that has no other; one in use is an `DaemonError` 409."""
        params = {"force": "1" if force else "0"}
        return await self._remove(f"/images/{_quoted(name)}", "remove an image", params)

    def pull(self, name: str, auth: str = "", platform: str = "") -> AsyncGenerator[Progress, None]:
        """Fetch an image from its registry; `auth` is what the header X-Registry-Auth takes."""
        at = name.rfind(":")
        tagged = at > name.rfind("/") and "@" not in name
        params = {
            "fromImage": name[:at] if tagged else name,
            "tag": name[at + 1 :] if tagged else "" if "@" in name else "latest",
            "platform": platform,
        }
        headers = {"X-Registry-Auth": auth} if auth else {}
        return self.progress("/images/create", f"pull {name}", params=params, headers=headers)

    async def import_image(self, tar: Body, name: str, labels: Labels) -> str:
        """Make an image of a file system's tar; its id."""
        repository, _, tag = name.rpartition(":")
        changes = [f"LABEL {quoted(key)}={quoted(value)}" for key, value in labels.items()]
        params = {"fromSrc": "-", "repo": repository, "tag": tag, "changes": changes}
        last = ""
        async for told in self.progress(
            "/images/create", f"import {name}", params=params, body=tar
        ):
            last = told.status or last
        return last

    # Networks

    async def create_network(
        self,
        name: str,
        labels: Labels,
        *,
        internal: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> str:
        """Create a bridge network; its id. One without a way out is `internal`."""
        body = {
            "Name": name,
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Internal": internal,
            "Labels": labels,
            "Options": options or {},
        }
        return (await self.post("/networks/create", Created, "create a network", body)).id

    async def network(self, name: str) -> NetworkInspect | None:
        """A network by its name or id, with who is in it."""
        return await self._get_or_none(
            f"/networks/{_quoted(name)}", NetworkInspect, "inspect a network"
        )

    async def networks(self, *labels: str) -> list[NetworkSummary]:
        params = {"filters": _filters(label=labels)}
        return await self.get("/networks", list[NetworkSummary], "list networks", params)

    async def connect(self, network: str, container: str) -> None:
        """Put a container into a network."""
        path, body = f"/networks/{_quoted(network)}/connect", {"Container": container}
        await self.call("POST", path, "connect a container to a network", json=body)

    async def disconnect(self, network: str, container: str) -> None:
        """Take a container out of a network."""
        path, body = (
            f"/networks/{_quoted(network)}/disconnect",
            {"Container": container, "Force": True},
        )
        await self.call("POST", path, "disconnect a container from a network", json=body)

    async def remove_network(self, name: str) -> bool:
        return await self._remove(f"/networks/{_quoted(name)}", "remove a network")

    # Volumes

    async def create_volume(self, name: str, labels: Labels) -> None:
        """Create a volume; one of this name that is there already stays as it is."""
        body = {"Name": name, "Labels": labels}
        await self.call("POST", "/volumes/create", "create a volume", json=body)

    async def volume(self, name: str) -> Volume | None:
        return await self._get_or_none(f"/volumes/{_quoted(name)}", Volume, "inspect a volume")

    async def volumes(self, *labels: str) -> list[Volume]:
        params = {"filters": _filters(label=labels)}
        return (await self.get("/volumes", VolumeList, "list volumes", params)).volumes or []

    async def remove_volume(self, name: str) -> bool:
        return await self._remove(f"/volumes/{_quoted(name)}", "remove a volume")

    async def usage(self) -> DiskUsage:
        """What takes up its disk. This may take the engine a while."""
        raw = await self.call("GET", "/system/df", "say what takes up its disk", seconds=300)
        return msgspec.json.decode(raw, type=DiskUsage)

    async def _get_or_none(self, path: str, kind: type[_T], doing: str) -> _T | None:
        try:
            return await self.get(path, kind, doing)
        except DaemonError as error:
            if error.status == 404:
                return None
            raise

    async def _remove(self, path: str, doing: str, params: Mapping[str, str] | None = None) -> bool:
        try:
            await self.call("DELETE", path, doing, params=params)
        except DaemonError as error:
            if error.status == 404:
                return False
            raise
        return True


def _quoted(name: str) -> str:
    """A name in a path. The engine wants an image's slashes and colons as they are."""
    return quote(name, safe="/:@")


def _filters(label: Sequence[str]) -> str:
    return msgspec.json.encode({"label": label} if label else {}).decode()


log = logging.getLogger(__name__)

_PING_INTERVAL = 5.0
_PING_SECONDS = 10.0
_MISSED_PINGS = 3


async def watch_daemon(engine: Daemon, on_hang: Callable[[str], Awaitable[None]]) -> None:
    """Ask the engine now and then whether it lives, for ever; tell when it does not for long."""
    missed = 0
    while True:
        await asyncio.sleep(_PING_INTERVAL)
        try:
            await engine.call("GET", "/_ping", "answer", seconds=_PING_SECONDS)
            missed = 0
        except SandboxError as error:
            missed += 1
            log.info("%s (%d of %d)", error, missed, _MISSED_PINGS)
            if missed == _MISSED_PINGS:
                with contextlib.suppress(SandboxError):
                    await on_hang(f"{error}; asked {_MISSED_PINGS} times")
                missed = 0
