"""The resources that Plimsoll created on a Docker daemon, from any host.

Containers and images inherit the labels of their image. A container that someone starts from an
image of Plimsoll has exactly the image's labels, so it differs from a sandbox, whose labels
are its own. A container is never shared, even if its image is.
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

_IMAGE_PREFIX = "plimsoll/"
"""Prefix of the image names that Plimsoll gives."""
_CHECKS = 100
_PAUSE = 0.1
_NETWORK_SECONDS = 2.0


ImageLabels = Mapping[str, Labels | None]
"""The labels of images by id."""
Users = Mapping[tuple[str, str], tuple[str, ...]]
"""The users of a resource, by its kind and id."""


class DockerInventory:
    """The inventory of one daemon. Entering it connects; it also works on an open `Daemon`."""

    name = "docker"

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def __aenter__(self) -> Self:
        await self._daemon.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._daemon.__aexit__(exc_type, exc, traceback)

    async def items(self) -> Sequence[Resource]:
        daemon = self._daemon
        images, networks, volumes = await asyncio.gather(
            daemon.images(OWNER_LABEL), daemon.networks(OWNER_LABEL), daemon.volumes(OWNER_LABEL)
        )
        # Containers are listed last, so that new users of the resources above are seen.
        containers = await daemon.containers()
        image_labels = {image.id: from_docker(image.labels) for image in images}
        users = _users(containers, image_labels)
        return [
            *_sandboxes(containers, image_labels, await self._exit_times(containers)),
            *_networks(networks, users),
            *_volumes(volumes, users),
            *_images(images, users),
        ]

    async def _exit_times(self, containers: Sequence[ContainerSummary]) -> Mapping[str, float]:
        """Exit times of sandboxes owned by other hosts, without those of compose services."""
        exit_times: dict[str, float] = {}
        for row in containers:
            labels = from_docker(row.labels)
            if row.state != "exited" or row.command != INIT or labels is None:
                continue
            if is_here(labels.owner) or (found := await self._daemon.inspect(row.id)) is None:
                continue
            if (when := _seconds(found.state.finished_at)) is not None:
                exit_times[row.id] = when
        return exit_times

    async def remove(self, resource: Resource) -> None:
        match resource.kind:
            case "sandbox":
                await self._remove_container(resource.id)
            case "network":
                await self._remove_network(resource.id)
            case "volume":
                await self._daemon.remove_volume(resource.id)
            case "image":
                await self._remove_image(resource.id)

    async def _remove_container(self, container: str) -> None:
        """Remove a container; another process may be removing it at the same time."""
        try:
            await self._daemon.remove(container)
        except DaemonError as error:
            if error.status != 409 or not await self._disappears(container):
                raise

    async def _remove_network(self, network: str) -> None:
        try:
            await remove_network(self._daemon, network, _NETWORK_SECONDS)
        except DaemonError as error:
            if "active endpoints" not in error.reason:
                raise
            raise DaemonError(
                f"{error}; if `docker network inspect` shows no container in it, restart the "
                "daemon: it has lost track of the network's endpoints and counts them again",
                error.status,
                error.reason,
            ) from None

    async def _disappears(self, container: str) -> bool:
        """Whether a container disappears within a few seconds."""
        for _ in range(_CHECKS):
            if await self._daemon.inspect(container) is None:
                return True
            await asyncio.sleep(_PAUSE)
        return False

    async def _remove_image(self, image: str) -> None:
        """Remove Plimsoll's tags; removing the last tag removes the image."""
        found = await self._daemon.image(image)
        names = (found.repo_tags if found is not None else None) or []
        for name in (
            [name for name in names if name.startswith(_IMAGE_PREFIX)] if names else [image]
        ):
            await self._daemon.remove_image(name)


def _is_plimsolls(row: ContainerSummary, image_labels: ImageLabels) -> bool:
    found = from_docker(row.labels)
    return found is not None and found != image_labels.get(row.image_id)


def _users(containers: Sequence[ContainerSummary], image_labels: ImageLabels) -> Users:
    """The users of images, networks and volumes: Plimsoll's containers by id, others by name."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for row in containers:
        user = row.id if _is_plimsolls(row, image_labels) else f"container {_name(row)}"
        found["image", row.image_id].append(user)
        for name, endpoint in (row.network_settings.networks or {}).items():
            found["network", endpoint.network or name].append(user)
        for mount in row.mounts:
            if mount.type == "volume":
                found["volume", mount.name].append(user)
    return {what: tuple(users) for what, users in found.items()}


def _sandboxes(
    containers: Sequence[ContainerSummary],
    image_labels: ImageLabels,
    exit_times: Mapping[str, float],
) -> Iterator[Resource]:
    for row in containers:
        labels = from_docker(row.labels)
        if labels is not None and _is_plimsolls(row, image_labels):
            yield Resource(
                "sandbox",
                row.id,
                labels,
                name=_name(row),
                state=row.state,
                created=row.created,
                ended=exit_times.get(row.id),
            )


def _networks(networks: Sequence[NetworkSummary], users: Users) -> Iterator[Resource]:
    for row in networks:
        if (labels := from_docker(row.labels)) is not None:
            users_of = users.get(("network", row.id), ()) + users.get(("network", row.name), ())
            yield Resource(
                "network",
                row.id,
                labels,
                name=row.name,
                created=_seconds(row.created),
                shared=is_shared(row.labels),
                used_by=users_of,
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
        # Docker lists an untagged image with this name.
        names = [name for name in row.repo_tags or () if name != "<none>:<none>"]
        own_names = [name for name in names if name.startswith(_IMAGE_PREFIX)]
        others = tuple(f"the name {name}" for name in names if name not in own_names)
        if (labels := from_docker(row.labels)) is not None:
            yield Resource(
                "image",
                row.id,
                labels,
                name=own_names[0] if own_names else "",
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
