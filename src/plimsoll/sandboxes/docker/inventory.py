"""What Plimsoll has made on a Docker engine, whoever made it and from wherever.

Containers and images inherit the labels of the image they are made from. So a container that
somebody starts from an image of ours to look at it carries our labels too, word for word; what
we make ourselves has labels of its own. And a container is never shared, though its image is.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from plimsoll.core.ids import Labels
from plimsoll.sandboxes.docker.container_spec import INIT
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.daemon.responses import (
    ContainerSummary,
    ImageSummary,
    NetworkSummary,
    Volume,
)
from plimsoll.sandboxes.docker.labels import OWNER_LABEL, from_docker, is_shared
from plimsoll.sandboxes.docker.network.run_networks import remove_network
from plimsoll.sandboxes.host.owners import is_here
from plimsoll.sandboxes.reaper import Resource

__all__ = ["DockerInventory"]

_OURS = "plimsoll/"
"""Names of images of ours begin so; any other name somebody else gave."""
_LOOKS = 100
_PAUSE = 0.1
_NETWORK_SECONDS = 2.0


Inherited = Mapping[str, Labels | None]
"""The labels of images, by their ids."""
Users = Mapping[tuple[str, str], tuple[str, ...]]
"""Who holds on to something, by its kind and id."""


class DockerInventory:
    """Entering it opens the engine; over an engine that is open it is used without."""

    name = "docker"

    def __init__(self, engine: Daemon) -> None:
        self._engine = engine

    async def __aenter__(self) -> Self:
        await self._engine.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._engine.__aexit__(exc_type, exc, traceback)

    async def items(self) -> Sequence[Resource]:
        engine = self._engine
        images, networks, volumes = await asyncio.gather(
            engine.images(OWNER_LABEL), engine.networks(OWNER_LABEL), engine.volumes(OWNER_LABEL)
        )
        # Containers come last: what began to use something in the meantime is seen.
        containers = await engine.containers()
        inherited = {image.id: from_docker(image.labels) for image in images}
        users = _users(containers, inherited)
        return [
            *_sandboxes(containers, inherited, await self._ends(containers)),
            *_networks(networks, users),
            *_volumes(volumes, users),
            *_images(images, users),
        ]

    async def _ends(self, containers: Sequence[ContainerSummary]) -> Mapping[str, float]:
        """When sandboxes ended whose owners are elsewhere. Services of a task may end before it."""
        ends: dict[str, float] = {}
        for row in containers:
            labels = from_docker(row.labels)
            if row.state != "exited" or row.command != INIT or labels is None:
                continue
            if is_here(labels.owner) or (found := await self._engine.inspect(row.id)) is None:
                continue
            if (when := _seconds(found.state.finished_at)) is not None:
                ends[row.id] = when
        return ends

    async def remove(self, item: Resource) -> None:
        match item.kind:
            case "sandbox":
                await self._remove_container(item.id)
            case "network":
                await self._remove_network(item.id)
            case "volume":
                await self._engine.remove_volume(item.id)
            case "image":
                await self._remove_image(item.id)

    async def _remove_container(self, container: str) -> None:
        """Others may be at it too: then it is gone when they are done."""
        try:
            await self._engine.remove(container)
        except DaemonError as error:
            if error.status != 409 or not await self._goes(container):
                raise

    async def _remove_network(self, network: str) -> None:
        try:
            await remove_network(self._engine, network, _NETWORK_SECONDS)
        except DaemonError as error:
            if "active endpoints" not in error.said:
                raise
            raise DaemonError(
                f"{error}; if `docker network inspect` shows no container in it, restart the "
                "daemon: it has lost count of the network's endpoints, and counts them anew",
                error.status,
                error.said,
            ) from None

    async def _goes(self, container: str) -> bool:
        """Whether a container is gone within some seconds."""
        for _ in range(_LOOKS):
            if await self._engine.inspect(container) is None:
                return True
            await asyncio.sleep(_PAUSE)
        return False

    async def _remove_image(self, image: str) -> None:
        """Take our names away, the last of which takes the image along."""
        found = await self._engine.image(image)
        names = (found.repo_tags if found is not None else None) or []
        for name in [name for name in names if name.startswith(_OURS)] if names else [image]:
            await self._engine.remove_image(name)


def _is_ours(row: ContainerSummary, inherited: Inherited) -> bool:
    found = from_docker(row.labels)
    return found is not None and found != inherited.get(row.image_id)


def _users(containers: Sequence[ContainerSummary], inherited: Inherited) -> Users:
    """Who holds on to images, networks and volumes: our containers' ids, others' names."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for row in containers:
        user = row.id if _is_ours(row, inherited) else f"container {_name(row)}"
        found["image", row.image_id].append(user)
        for name, place in (row.network_settings.networks or {}).items():
            found["network", place.network or name].append(user)
        for mount in row.mounts:
            if mount.type == "volume":
                found["volume", mount.name].append(user)
    return {what: tuple(users) for what, users in found.items()}


def _sandboxes(
    containers: Sequence[ContainerSummary], inherited: Inherited, ends: Mapping[str, float]
) -> Iterator[Resource]:
    for row in containers:
        labels = from_docker(row.labels)
        if labels is not None and _is_ours(row, inherited):
            yield Resource(
                "sandbox",
                row.id,
                labels,
                name=_name(row),
                state=row.state,
                created=row.created,
                ended=ends.get(row.id),
            )


def _networks(networks: Sequence[NetworkSummary], users: Users) -> Iterator[Resource]:
    for row in networks:
        if (labels := from_docker(row.labels)) is not None:
            by = users.get(("network", row.id), ()) + users.get(("network", row.name), ())
            yield Resource(
                "network",
                row.id,
                labels,
                name=row.name,
                created=_seconds(row.created),
                shared=is_shared(row.labels),
                used_by=by,
            )


def _volumes(volumes: Sequence[Volume], users: Users) -> Iterator[Resource]:
    for row in volumes:
        if (labels := from_docker(row.labels)) is not None:
            yield Resource(
                "volume",
                row.name,
                labels,
                created=_seconds(row.created_at),
                shared=is_shared(row.labels),
                used_by=users.get(("volume", row.name), ()),
            )


def _images(images: Sequence[ImageSummary], users: Users) -> Iterator[Resource]:
    for row in images:
        # An image without a name is listed with this one.
        names = [name for name in row.repo_tags or () if name != "<none>:<none>"]
        ours = [name for name in names if name.startswith(_OURS)]
        others = tuple(f"the name {name}" for name in names if name not in ours)
        if (labels := from_docker(row.labels)) is not None:
            yield Resource(
                "image",
                row.id,
                labels,
                name=ours[0] if ours else "",
                created=row.created,
                shared=is_shared(row.labels),
                used_by=users.get(("image", row.id), ()) + others,
            )


def _name(row: ContainerSummary) -> str:
    return row.names[0].lstrip("/") if row.names else row.id[:12]


def _seconds(when: str) -> float | None:
    try:
        return datetime.fromisoformat(when).timestamp()
    except ValueError:
        return None
