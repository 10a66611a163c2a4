"""Removal of sandboxes and other resources: the inventories of a config's backends, the
choices of `plimsoll clean`, and the reaping at the end of a run, because killed workers leave
their sandboxes behind."""

import asyncio
import difflib
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from plimsoll.config.file import Config
from plimsoll.core.errors import SandboxError, UsageError
from plimsoll.core.ids import Owner
from plimsoll.sandboxes.host.owners import is_alive, is_here
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.inventory import LocalInventory
from plimsoll.sandboxes.reaper import (
    RESOURCE_KINDS,
    Inventory,
    Resource,
    in_use,
    reap,
    remove_all,
    select_removable,
)
from plimsoll.workers.worker.backends import BACKENDS, docker_extra, docker_options

__all__ = [
    "ALL",
    "BackendItems",
    "Inventories",
    "RemainingResource",
    "RemovalPlan",
    "choose_all",
    "choose_expired",
    "choose_run",
    "find_inventory",
    "of_live_owners",
    "of_others",
    "open_inventories",
    "reap_at_end",
]

ALL = "all"
_SHOWN_RUNS = 10
_REAP_SECONDS = 20.0
"""Time limit for reaping: the next start reaps the rest."""

_OnEnd = Callable[[str, Resource, str], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackendItems:
    """The open inventory of one backend, and its resources."""

    inventory: Inventory
    items: tuple[Resource, ...]


@dataclass(frozen=True, slots=True)
class Inventories:
    """The resources of every backend that could be reached."""

    listed: tuple[BackendItems, ...]
    unreached: dict[str, str]
    """Backends that could not be reached, each with the error."""
    now: float

    @property
    def backends(self) -> list[str]:
        return [listed.inventory.name for listed in self.listed]


@asynccontextmanager
async def open_inventories(backend: str, config: Config) -> AsyncGenerator[Inventories, None]:
    """Open the inventory of one backend, or of all. Only a backend given by name must be
    reachable."""
    if backend not in (ALL, *BACKENDS):
        raise UsageError(f"no backend is called {backend!r}: choose {', '.join((ALL, *BACKENDS))}")
    inventories: list[BackendItems] = []
    unreached: dict[str, str] = {}
    async with AsyncExitStack() as opened:
        for name in BACKENDS if backend == ALL else [backend]:
            try:
                inventory = await opened.enter_async_context(find_inventory(name, config))
                inventories.append(BackendItems(inventory, tuple(await inventory.items())))
            except (SandboxError, UsageError) as error:
                if backend != ALL:
                    raise
                unreached[name] = str(error)
        yield Inventories(tuple(inventories), unreached, time.time())


def find_inventory(name: str, config: Config) -> Inventory:
    """The inventory of one backend, not yet entered."""
    if name == "local":
        home = config.local.home
        return LocalInventory(Home.find(None if home is None else Path(home)))
    return _docker(config)


def _docker(config: Config) -> Inventory:
    with docker_extra():
        from plimsoll.sandboxes.docker.daemon.api import Daemon
        from plimsoll.sandboxes.docker.inventory import DockerInventory
    return DockerInventory(Daemon(docker_options(config).endpoint(os.environ)))


@dataclass(frozen=True, slots=True)
class RemainingResource:
    """A resource that is not removed, and the reason."""

    backend: str
    item: Resource
    why: str


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """The resources to remove and the resources to keep."""

    removals: tuple[BackendItems, ...]
    left: tuple[RemainingResource, ...] = ()
    shared: int = 0
    """The number of shared resources that the run made; they are kept."""

    @property
    def items(self) -> Iterator[tuple[str, Resource]]:
        """All resources to remove, each with its backend, in the order of removal."""
        return ((s.inventory.name, item) for s in self.removals for item in s.items)

    async def carry_out(self, on_end: _OnEnd) -> None:
        """Remove them. Calls `on_end` for each, with the error or ""."""
        for listed in self.removals:
            name = listed.inventory.name
            await remove_all(
                listed.inventory, listed.items, lambda item, why, name=name: on_end(name, item, why)
            )


def choose_expired(inventories: Inventories) -> RemovalPlan:
    """The resources that the reaper would remove."""
    return RemovalPlan(
        tuple(
            BackendItems(s.inventory, tuple(select_removable(s.items, inventories.now)))
            for s in inventories.listed
        )
    )


def choose_all(inventories: Inventories) -> RemovalPlan:
    """All resources, shared ones too, except those in use or still being made."""

    def is_chosen(item: Resource) -> bool:
        labels = item.labels
        return bool(labels.run) or labels.expires < inventories.now or not is_alive(labels.owner)

    return _choose(inventories, is_chosen)


def choose_run(inventories: Inventories, run: str, *, is_known: bool = False) -> RemovalPlan:
    """The resources of one run, without shared ones. `is_known`: the run may have none."""
    names = sorted({i.labels.run for s in inventories.listed for i in s.items if i.labels.run})
    if run not in names and not is_known:
        raise UsageError(_no_such_run(run, names, inventories))
    chosen = _choose(inventories, lambda item: item.labels.run == run and not item.shared)
    shared = sum(i.shared and i.labels.run == run for s in inventories.listed for i in s.items)
    return RemovalPlan(chosen.removals, chosen.left, shared)


def of_live_owners(plan: RemovalPlan, now: float) -> dict[Owner, list[Resource]]:
    """Resources to remove whose owner is alive, or may be: on another host that is unknown."""
    found: dict[Owner, list[Resource]] = {}
    for _, item in plan.items:
        owner = item.labels.owner
        if is_alive(owner) and (is_here(owner) or item.labels.expires >= now):
            found.setdefault(owner, []).append(item)
    return found


def of_others(living: Iterable[Owner]) -> list[Owner]:
    """The live owners on this host, of another run if this one has ended.

    Labels hold only the last part of a run directory's path, so another run may have the same
    label.
    """
    return [owner for owner in living if is_here(owner)]


def _choose(inventories: Inventories, is_chosen: Callable[[Resource], bool]) -> RemovalPlan:
    removals: list[BackendItems] = []
    left: list[RemainingResource] = []
    for listed in inventories.listed:
        chosen = sorted(
            filter(is_chosen, listed.items), key=lambda item: RESOURCE_KINDS.index(item.kind)
        )
        used = in_use(chosen)
        removals.append(BackendItems(listed.inventory, tuple(i for i in chosen if i not in used)))
        left += (
            RemainingResource(
                listed.inventory.name, item, f"used by {', '.join(_named(users, listed.items))}"
            )
            for item, users in used.items()
        )
    return RemovalPlan(tuple(removals), tuple(left))


def _named(users: Sequence[str], items: Sequence[Resource]) -> Iterator[str]:
    """The users of a resource, for a person: containers of Plimsoll with their run."""
    ours = {item.id: item for item in items}
    for user in users:
        item = ours.get(user)
        yield user if item is None else f"{item.name or item.id} of run {item.labels.run}"


def _no_such_run(run: str, names: Sequence[str], inventories: Inventories) -> str:
    problem = f"no run is called {run!r}" if run.strip() else "the name of the run is empty"
    close = [name for name in names if run.strip() and run in name]
    close += (n for n in difflib.get_close_matches(run, names, _SHOWN_RUNS) if n not in close)
    shown = (close or list(names))[:_SHOWN_RUNS]
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    here = f"runs here: {', '.join(shown)}{more}" if names else "no run has anything here"
    not_asked = "".join(
        f"; {name} was not asked: {why}" for name, why in inventories.unreached.items()
    )
    return f"{problem}; {here}{not_asked}"


async def reap_at_end(config: Config) -> None:
    """Reap resources without an owner, on this host or the config's daemon. Never fails a run."""
    try:
        async with (
            asyncio.timeout(_REAP_SECONDS),
            find_inventory(config.run.backend, config) as inventory,
        ):
            await reap(inventory)
    except (SandboxError, UsageError, TimeoutError) as error:
        _log.warning(
            "resources of killed workers may be left (%s): remove them with "
            "plimsoll clean --expired",
            str(error) or f"it takes longer than {_REAP_SECONDS:g} s",
        )
