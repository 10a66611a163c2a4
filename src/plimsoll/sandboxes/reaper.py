"""The inventory of a backend's resources, and the reaper that removes unneeded ones.

A resource is a sandbox, network, volume or image with Plimsoll's labels. `ps` and `clean` use the
inventory too. The reaper's rules:

* A resource of a dead owner is removed, unless it is shared.
* An expired resource is removed, unless it is in use or its owner is alive on this host: neither a
  long trial nor a clock that was set forward ends a sandbox in use.
* An owner on another host is assumed to be alive. Its sandboxes are removed once they have been
  ended for an hour: a live owner removes its sandboxes when they end.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from plimsoll.core.errors import SandboxError
from plimsoll.core.ids import Labels, Owner
from plimsoll.sandboxes.host.owners import is_alive, is_here

__all__ = [
    "RESOURCE_KINDS",
    "Inventory",
    "Reaper",
    "RemovalFailure",
    "RemovalResult",
    "Resource",
    "ResourceKind",
    "in_use",
    "reap",
    "remove_all",
    "select_removable",
]

ResourceKind = Literal["sandbox", "network", "volume", "image"]

RESOURCE_KINDS: tuple[ResourceKind, ...] = ("sandbox", "network", "volume", "image")
"""In the order of removal: users of a resource go before it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One labelled resource on a host or a daemon."""

    kind: ResourceKind
    id: str
    labels: Labels
    name: str = ""
    """Its display name, if that is not the id: the tag of an image."""
    state: str = ""
    """The state in the words of its backend: running, exited."""
    created: float | None = None
    ended: float | None = None
    """The end of a sandbox whose owner is on another host. It ended when its owner disconnected,
    and cannot be used again."""
    shared: bool = False
    """Whether it serves many runs: it then outlives its owner and stays until it expires."""
    used_by: tuple[str, ...] = ()
    """Ids of the sandboxes, and names of foreign containers, that use it."""


class Inventory(Protocol):
    """Lists and removes the resources of a backend. Entering it changes nothing."""

    @property
    def name(self) -> str:
        """The backend's name."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def items(self) -> Sequence[Resource]:
        """All resources with Plimsoll's labels, of every owner."""
        ...

    async def remove(self, resource: Resource, /) -> None:
        """Remove a resource with its content. A missing one is no error.

        Raises `SandboxError` with the reason if it cannot be removed.
        """
        ...


log = logging.getLogger(__name__)

_CONCURRENCY = 8
_PERIOD = 180.0
_ENDED_SECONDS = 3600.0
"""Ample, since the clock of a daemon may differ from this host's."""
_LAST_SECONDS = 10.0
"""Time limit of the last pass. The next process that starts removes the rest."""


@dataclass(frozen=True, slots=True)
class RemovalFailure:
    """A resource that could not be removed, and the reason."""

    resource: Resource
    reason: str


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """The outcome of a removal."""

    removed: tuple[Resource, ...]
    failed: tuple[RemovalFailure, ...]


def select_removable(
    resources: Sequence[Resource],
    now: float,
    is_alive: Callable[[Owner], bool] = is_alive,
) -> list[Resource]:
    """The unneeded resources, in the order of removal."""
    owners = {resource.labels.owner for resource in resources}
    dead = {owner for owner in owners if not is_alive(owner)}
    live_here = {owner for owner in owners - dead if is_here(owner)}

    def is_due(resource: Resource) -> bool:
        owner = resource.labels.owner
        if not resource.shared and owner in dead:
            return True
        if resource.labels.expires < now and (resource.shared or owner not in live_here):
            return True
        return resource.ended is not None and resource.ended + _ENDED_SECONDS < now

    chosen = [resource for resource in resources if is_due(resource)]
    used = in_use(chosen)
    return sorted(
        (resource for resource in chosen if resource not in used),
        key=lambda resource: RESOURCE_KINDS.index(resource.kind),
    )


def in_use(chosen: Sequence[Resource]) -> dict[Resource, tuple[str, ...]]:
    """The chosen resources that others, which are not chosen, use, with these users."""
    chosen_ids = {resource.id for resource in chosen if resource.kind == "sandbox"}
    users_of = {
        resource: tuple(user for user in resource.used_by if user not in chosen_ids)
        for resource in chosen
    }
    return {resource: users for resource, users in users_of.items() if users}


async def reap(inventory: Inventory) -> RemovalResult:
    """Remove all unneeded resources."""
    result = await remove_all(inventory, select_removable(await inventory.items(), time.time()))
    for resource in result.removed:
        log.info("removed %s %s of run %s", resource.kind, resource.id, resource.labels.run)
    for failure in result.failed:
        left = failure.resource
        log.warning("%s %s could not be removed: %s", left.kind, left.id, failure.reason)
    return result


async def remove_all(
    inventory: Inventory,
    resources: Sequence[Resource],
    on_end: Callable[[Resource, str], None] | None = None,
) -> RemovalResult:
    """Remove resources concurrently. `on_end` gets each with the reason of its failure, or ""."""
    ended: dict[Resource, str] = {}
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def remove(resource: Resource) -> None:
        async with slots:
            try:
                await inventory.remove(resource)
                ended[resource] = ""
            except SandboxError as error:
                ended[resource] = str(error)
        if on_end is not None:
            on_end(resource, ended[resource])

    for kind in RESOURCE_KINDS:
        async with asyncio.TaskGroup() as group:
            for resource in resources:
                if resource.kind == kind:
                    group.create_task(remove(resource))
    return RemovalResult(
        tuple(resource for resource, reason in ended.items() if not reason),
        tuple(RemovalFailure(resource, reason) for resource, reason in ended.items() if reason),
    )


class Reaper:
    """Reaps every few minutes while it is entered, and once more at its end.

    So a worker that is killed leaves its sandboxes to the other workers. An error ends no run.
    """

    def __init__(self, inventory: Inventory, *, every: float = _PERIOD) -> None:
        self._inventory = inventory
        self._every = every
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._loop())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if exc_type is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._reap()

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self._reap()

    async def _reap(self) -> None:
        try:
            await reap(self._inventory)
        except Exception as error:  # noqa: BLE001 - leftovers of other runs must not end this one
            log.warning("leftovers of dead runs could not be removed: %s", error)
