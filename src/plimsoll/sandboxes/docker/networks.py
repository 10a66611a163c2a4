"""The network of sandboxes that may use one: a bridge for each run, on which they are apart.

One for a run and not one for a trial, since an engine has few dozen ranges of addresses.

Containers are told by address who is asked for names. Otherwise an engine whose host has a name
server on its loopback asks that one on their behalf, also for containers that were taken out of
their network: names that are looked up would be a way out.
"""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address

from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.ids import Labels, short_id
from plimsoll.sandboxes.docker.engine import Engine
from plimsoll.sandboxes.docker.errors import EngineError
from plimsoll.sandboxes.docker.labels import to_engine

__all__ = ["Networks", "is_no_network", "name_servers"]

log = logging.getLogger(__name__)

_APART = {"com.docker.network.bridge.enable_icc": "false"}
"""Containers on the bridge do not reach each other."""
_LIFE = 7 * 24 * 3600.0
"""Its own, whatever its sandboxes' is: who uses it keeps it, and else another is made. What a host
that is gone left would take up one of an engine's few ranges for as long as any task may take."""
_REMOVE_SECONDS = 10.0
_NOBODY = ("127.0.0.1",)
"""The container itself, in which nobody answers."""


class Networks:
    """The networks of one backend, made when the first sandbox of a run wants one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._made: dict[str, str] = {}
        self._turn = asyncio.Lock()

    async def of_run(self, labels: Labels) -> str:
        """The name of the run's network."""
        async with self._turn:
            if labels.run not in self._made:
                self._made[labels.run] = await self._make(labels)
            return self._made[labels.run]

    def forget(self, name: str) -> None:
        """Somebody removed it: the next sandbox gets a new one."""
        self._made = {run: made for run, made in self._made.items() if made != name}

    async def _make(self, labels: Labels) -> str:
        own = replace(labels, ticket="network", expires=time.time() + _LIFE)
        # The engine takes letters, digits and a few signs in a name; the run stands in a label.
        name = f"plimsoll-{short_id()}"
        try:
            await self._engine.create_network(name, to_engine(own), options=_APART)
        except EngineError as error:
            if "address pool" in error.said:
                raise SandboxUnavailable(
                    f"the Docker engine at {self._engine.endpoint} has no range of addresses left "
                    "for another network: remove networks nobody uses (plimsoll clean --expired, "
                    "docker network prune), or give it more (default-address-pools in its "
                    "daemon.json)"
                ) from None
            raise SandboxUnavailable(str(error)) from None
        return name

    async def close(self) -> None:
        """Remove them. Their sandboxes are closed."""
        names, self._made = list(self._made.values()), {}
        for name in names:
            try:
                await self._remove(name)
            except SandboxError as error:
                log.warning("the network %s is left: %s", name, error)

    async def _remove(self, name: str) -> None:
        """The engine may take a moment to see that the last container is out of it."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        while True:
            try:
                await self._engine.remove_network(name)
                return
            except EngineError as error:
                if "active endpoints" not in error.said or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)


def is_no_network(error: EngineError) -> bool:
    """Whether the engine refused a call since a network is gone."""
    return error.status == 404 and "network" in error.said.lower()


def name_servers(resolv_conf: str) -> tuple[str, ...]:
    """The addresses in a resolv.conf that a container reaches by its own network, if any."""
    words = [line.split() for line in resolv_conf.splitlines()]
    named = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
    found: list[str] = []
    for name in named:
        with suppress(ValueError):
            if not ip_address(name).is_loopback:
                found.append(name)
    return tuple(found) or _NOBODY
