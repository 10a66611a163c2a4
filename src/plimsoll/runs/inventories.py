"""Which inventories a config has, opened together: what is there, and who could not be asked."""

import os
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import SandboxError, UsageError
from plimsoll.runs.backends import BACKENDS, docker_extra, docker_options
from plimsoll.runs.config import Config
from plimsoll.sandboxes.inventory import Inventory, Item
from plimsoll.sandboxes.local.home import Home
from plimsoll.sandboxes.local.inventory import LocalInventory

__all__ = ["ALL", "Shelf", "Stock", "find_inventory", "open_stock"]

ALL = "all"


@dataclass(frozen=True, slots=True)
class Shelf:
    """One backend's inventory, open, and what is in it."""

    inventory: Inventory
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Stock:
    """What is there, on every backend that could be asked."""

    shelves: tuple[Shelf, ...]
    unreached: dict[str, str]
    """Backends that could not be asked, and why."""
    now: float

    @property
    def backends(self) -> list[str]:
        return [shelf.inventory.name for shelf in self.shelves]


@asynccontextmanager
async def open_stock(backend: str, config: Config) -> AsyncGenerator[Stock, None]:
    """Ask one backend, or all. Only one that was named must answer."""
    if backend not in (ALL, *BACKENDS):
        raise UsageError(f"no backend is called {backend!r}: choose {', '.join((ALL, *BACKENDS))}")
    shelves: list[Shelf] = []
    unreached: dict[str, str] = {}
    async with AsyncExitStack() as opened:
        for name in BACKENDS if backend == ALL else [backend]:
            try:
                inventory = await opened.enter_async_context(find_inventory(name, config))
                shelves.append(Shelf(inventory, tuple(await inventory.items())))
            except (SandboxError, UsageError) as error:
                if backend != ALL:
                    raise
                unreached[name] = str(error)
        yield Stock(tuple(shelves), unreached, time.time())


def find_inventory(name: str, config: Config) -> Inventory:
    """That of one backend, to be entered."""
    if name == "local":
        home = config.local.home
        return LocalInventory(Home.find(None if home is None else Path(home)))
    return _docker(config)


def _docker(config: Config) -> Inventory:
    with docker_extra():
        from plimsoll.sandboxes.docker.engine import Engine
        from plimsoll.sandboxes.docker.inventory import DockerInventory
    return DockerInventory(Engine(docker_options(config).endpoint(os.environ)))
