"""What a backend has made and not yet removed: for `ps`, `clean` and the reaper.

Which of the things on a host or an engine nobody needs any more, and their removal.

* What a dead owner left goes, unless it is shared.
* What is past its expiry goes, unless something holds on to it, or its owner lives on this host: a
  trial that takes long, or a clock that was put forward, ends no sandbox that is in use.
* An owner on another host cannot be asked, and is taken to be alive. But what of it has ended for
  long goes: an owner that lives removes its sandboxes when they end.
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
"""In the order in which they are removed: what uses something goes before it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing on a host or an engine, with the labels that say whose it is."""

    kind: ResourceKind
    id: str
    labels: Labels
    name: str = ""
    """What people call it, where that is not its id: an image's tag."""
    state: str = ""
    """As its backend names it: running, exited."""
    created: float | None = None
    ended: float | None = None
    """When a sandbox ended whose owner cannot be asked. It ends with its owner's stream, and
    nothing can be had of it without."""
    shared: bool = False
    """It serves many runs and outlives its owner, until it expires."""
    used_by: tuple[str, ...] = ()
    """Ids of the sandboxes, and names of others' containers, that hold on to it."""


class Inventory(Protocol):
    """Lists and removes, and starts nothing: entering it changes nothing."""

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
        """Everything with our labels, whoever made it."""
        ...

    async def remove(self, item: Resource) -> None:
        """Remove it with all that is in it. What is gone already is no error.

        What cannot be removed is a `SandboxError` that says why.
        """
        ...


log = logging.getLogger(__name__)

_AT_ONCE = 8
_PERIOD = 180.0
_ENDED_SECONDS = 3600.0
"""The clock of an engine may differ from this host's."""
_LAST_SECONDS = 10.0
"""What the last time may take: the next that starts does the rest."""


@dataclass(frozen=True, slots=True)
class RemovalFailure:
    """Something that could not be removed, and why."""

    item: Resource
    reason: str


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """What became of things that were to be removed."""

    removed: tuple[Resource, ...]
    failed: tuple[RemovalFailure, ...]


def select_removable(
    items: Sequence[Resource],
    now: float,
    is_alive: Callable[[Owner], bool] = is_alive,
    is_here: Callable[[Owner], bool] = is_here,
) -> list[Resource]:
    """What is to be removed, in the order of removal."""
    owners = {item.labels.owner for item in items}
    dead = {owner for owner in owners if not is_alive(owner)}
    lives_here = {owner for owner in owners - dead if is_here(owner)}

    def due(item: Resource) -> bool:
        owner = item.labels.owner
        if not item.shared and owner in dead:
            return True
        if item.labels.expires < now and (item.shared or owner not in lives_here):
            return True
        return item.ended is not None and item.ended + _ENDED_SECONDS < now

    chosen = [item for item in items if due(item)]
    kept = in_use(chosen)
    return sorted(
        (item for item in chosen if item not in kept),
        key=lambda item: RESOURCE_KINDS.index(item.kind),
    )


def in_use(chosen: Sequence[Resource]) -> dict[Resource, tuple[str, ...]]:
    """Those of the chosen that something else, which is not chosen, holds on to."""
    going = {item.id for item in chosen if item.kind == "sandbox"}
    kept = {item: tuple(user for user in item.used_by if user not in going) for item in chosen}
    return {item: users for item, users in kept.items() if users}


async def reap(inventory: Inventory) -> RemovalResult:
    """Remove what nobody needs any more."""
    reaped = await remove_all(inventory, select_removable(await inventory.items(), time.time()))
    for item in reaped.removed:
        log.info("removed %s %s of run %s", item.kind, item.id, item.labels.run)
    for failed in reaped.failed:
        log.warning("%s %s is left: %s", failed.item.kind, failed.item.id, failed.reason)
    return reaped


async def remove_all(
    inventory: Inventory,
    items: Sequence[Resource],
    on_end: Callable[[Resource, str], None] | None = None,
) -> RemovalResult:
    """Remove things, several at once; `on_end` is told each with why it is left, or ""."""
    ended: dict[Resource, str] = {}
    turns = asyncio.Semaphore(_AT_ONCE)

    async def remove(item: Resource) -> None:
        async with turns:
            try:
                await inventory.remove(item)
                ended[item] = ""
            except SandboxError as error:
                ended[item] = str(error)
        if on_end is not None:
            on_end(item, ended[item])

    for kind in RESOURCE_KINDS:
        async with asyncio.TaskGroup() as group:
            for item in items:
                if item.kind == kind:
                    group.create_task(remove(item))
    return RemovalResult(
        tuple(item for item, reason in ended.items() if not reason),
        tuple(RemovalFailure(item, reason) for item, reason in ended.items() if reason),
    )


class Reaper:
    """Reaps every few minutes while it is entered, and a last time at its end: a worker that was
    killed beside others leaves its sandboxes to them. What goes wrong in it ends no run."""

    def __init__(self, inventory: Inventory, *, every: float = _PERIOD) -> None:
        self._inventory = inventory
        self._every = every
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._go_on())
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

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self._reap()

    async def _reap(self) -> None:
        try:
            await reap(self._inventory)
        except Exception as error:  # noqa: BLE001 - what others left is not this run's trouble
            log.warning("what dead runs left could not be removed: %s", error)
