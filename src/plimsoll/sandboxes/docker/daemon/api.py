"""The calls of the Docker API that Plimsoll uses, and the check that the daemon answers.

A daemon that ends needs no check: its streams end. A daemon that hangs is found by pings.
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
"""Time limit in seconds for the daemon to unpack a tar into a container."""
_T = TypeVar("_T")


class Daemon(Client):
    """One Docker daemon. Removals return False for an object that does not exist."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._info: DaemonInfo | None = None

    async def info(self) -> DaemonInfo:
        """The daemon's host and features; asked once."""
        if self._info is None:
            self._info = await self.get("/info", DaemonInfo, "report its features")
        return self._info

    # Containers

    async def create_container(self, config: Mapping[str, object], name: str) -> str:
        """Create a container without starting it. Returns its id."""
        made = await self.post(
            "/containers/create", Created, "create a container", config, {"name": name}
        )
        return made.id

    async def start(self, container: str) -> None:
        await self.call("POST", f"/containers/{container}/start", "start a container")

    async def inspect(self, container: str) -> ContainerInspect | None:
        """The state of a container; None if it does not exist."""
        path = f"/containers/{_quoted(container)}/json"
        return await self._get_or_none(path, ContainerInspect, "inspect a container")

    async def remove(self, container: str) -> bool:
        """Kill and remove a container with its anonymous volumes."""
        params = {"force": "1", "v": "1"}
        path = f"/containers/{container}"
        return await self._remove(path, "remove a container", params)

    async def containers(self, *labels: str) -> list[ContainerSummary]:
        """Containers with all these labels, `key` or `key=value`, also exited ones."""
        params = {"all": "1", "filters": _filters(label=labels)}
        return await self.get("/containers/json", list[ContainerSummary], "list containers", params)

    # Files of a container

    async def put_archive(self, container: str, path: str, tar: Body) -> None:
        """Unpack a tar into a folder of a container, which need not be running."""
        where = f"/containers/{container}/archive"
        action = f"put files into {path} of a container"
        async with self.stream(
            "PUT", where, action, params={"path": path}, body=tar, seconds=PUT_SECONDS
        ) as response:
            await response.read()

    @asynccontextmanager
    async def get_archive(
        self, container: str, path: str
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """The file or folder at a path of a container, as the chunks of a tar."""
        where = f"/containers/{container}/archive"
        action = f"read {path} of a container"
        async with self.stream("GET", where, action, params={"path": path}) as response:
            yield response.content.iter_any()

    async def stat_archive(self, container: str, path: str) -> PathStat | None:
        """The file or folder at a path of a container; None if there is none."""
        where = f"/containers/{container}/archive"
        action = f"look at {path} of a container"
        try:
            async with self.stream(
                "HEAD", where, action, params={"path": path}, seconds=CALL_SECONDS
            ) as response:
                stat = base64.b64decode(response.headers["X-Docker-Container-Path-Stat"])
                return msgspec.json.decode(stat, type=PathStat)
        except DaemonError as error:
            if error.status == 404:
                return None
            raise

    # Images

    async def image(self, name: str) -> ImageInspect | None:
        """An image by its name or id; None if the daemon does not have it."""
        return await self._get_or_none(
            f"/images/{_quoted(name)}/json", ImageInspect, "inspect an image"
        )

    async def images(self, *labels: str, all: bool = False) -> list[ImageSummary]:
        """Images with all these labels; with `all` also intermediate ones."""
        params = {"all": "1" if all else "0", "filters": _filters(label=labels)}
        return await self.get("/images/json", list[ImageSummary], "list images", params)

    async def tag(self, image: str, name: str) -> None:
        """Tag an image as `repository:tag`."""
        repository, _, tag = name.rpartition(":")
        params = {"repo": repository, "tag": tag}
        await self.call("POST", f"/images/{_quoted(image)}/tag", "tag an image", params=params)

    async def remove_image(self, name: str) -> bool:
        """Remove a tag, or the image if it has no other. One in use is a `DaemonError` 409."""
        return await self._remove(f"/images/{_quoted(name)}", "remove an image")

    def pull(self, name: str, auth: str = "", platform: str = "") -> AsyncGenerator[Progress, None]:
        """Pull an image from its registry. `auth` is the value of the header X-Registry-Auth."""
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
        """Create an image from the tar of a file system. Returns its id."""
        repository, _, tag = name.rpartition(":")
        changes = [f"LABEL {quoted(key)}={quoted(value)}" for key, value in labels.items()]
        params = {"fromSrc": "-", "repo": repository, "tag": tag, "changes": changes}
        last = ""
        async for progress in self.progress(
            "/images/create", f"import {name}", params=params, body=tar
        ):
            last = progress.status or last
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
        """Create a bridge network. An `internal` one has no route outside. Returns its id."""
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
        """A network by its name or id, with its containers."""
        return await self._get_or_none(
            f"/networks/{_quoted(name)}", NetworkInspect, "inspect a network"
        )

    async def networks(self, *labels: str) -> list[NetworkSummary]:
        params = {"filters": _filters(label=labels)}
        return await self.get("/networks", list[NetworkSummary], "list networks", params)

    async def connect(self, network: str, container: str, aliases: Sequence[str] = ()) -> None:
        """Connect a container to a network, where it also has these names."""
        path = f"/networks/{_quoted(network)}/connect"
        body: dict[str, object] = {"Container": container}
        if aliases:
            body["EndpointConfig"] = {"Aliases": aliases}
        await self.call("POST", path, "connect a container to a network", json=body)

    async def disconnect(self, network: str, container: str) -> None:
        """Disconnect a container from a network."""
        path, body = (
            f"/networks/{_quoted(network)}/disconnect",
            {"Container": container, "Force": True},
        )
        await self.call("POST", path, "disconnect a container from a network", json=body)

    async def remove_network(self, name: str) -> bool:
        return await self._remove(f"/networks/{_quoted(name)}", "remove a network")

    # Volumes

    async def create_volume(self, name: str, labels: Labels) -> None:
        """Create a volume. An existing volume of this name is left unchanged."""
        body = {"Name": name, "Labels": labels}
        await self.call("POST", "/volumes/create", "create a volume", json=body)

    async def volume(self, name: str) -> Volume | None:
        return await self._get_or_none(f"/volumes/{_quoted(name)}", Volume, "inspect a volume")

    async def volumes(self, *labels: str) -> list[Volume]:
        params = {"filters": _filters(label=labels)}
        return (await self.get("/volumes", VolumeList, "list volumes", params)).volumes or []

    async def remove_volume(self, name: str) -> bool:
        return await self._remove(f"/volumes/{_quoted(name)}", "remove a volume")

    async def _get_or_none(self, path: str, kind: type[_T], action: str) -> _T | None:
        try:
            return await self.get(path, kind, action)
        except DaemonError as error:
            if error.status == 404:
                return None
            raise

    async def _remove(
        self, path: str, action: str, params: Mapping[str, str] | None = None
    ) -> bool:
        try:
            await self.call("DELETE", path, action, params=params)
        except DaemonError as error:
            if error.status == 404:
                return False
            raise
        return True


def _quoted(name: str) -> str:
    """A name for use in a URL path. The daemon expects slashes and colons unquoted."""
    return quote(name, safe="/:@")


def _filters(label: Sequence[str]) -> str:
    return msgspec.json.encode({"label": label} if label else {}).decode()


log = logging.getLogger(__name__)

_PING_INTERVAL = 5.0
_PING_SECONDS = 10.0
_MISSED_PINGS = 3


async def watch_daemon(daemon: Daemon, on_hang: Callable[[str], Awaitable[None]]) -> None:
    """Ping the daemon until cancelled; call `on_hang` after several pings without a response."""
    missed = 0
    while True:
        await asyncio.sleep(_PING_INTERVAL)
        try:
            await daemon.call("GET", "/_ping", "answer a ping", seconds=_PING_SECONDS)
            missed = 0
        except SandboxError as error:
            missed += 1
            log.info("%s (%d of %d)", error, missed, _MISSED_PINGS)
            if missed == _MISSED_PINGS:
                with contextlib.suppress(SandboxError):
                    await on_hang(f"{error}; {_MISSED_PINGS} pings failed")
                missed = 0
