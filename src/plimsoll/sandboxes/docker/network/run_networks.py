"""The network of sandboxes that may use one: a bridge for each run, on which they are apart.

One for a run, however many processes work for it, since an engine has few dozen ranges of
addresses.

Containers are told by address who is asked for names. Otherwise an engine whose host has a name
server on its loopback asks that one on their behalf, also for containers that were taken out of
their network: names that are looked up would be a way out.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.ids import Labels, short_id
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.errors import DaemonError, DaemonUnreachable
from plimsoll.sandboxes.docker.labels import RUN, TICKET, to_docker
from plimsoll.sandboxes.docker.single_flight import HostLocks

__all__ = ["RunNetworks", "is_missing_network", "name_servers", "remove_network"]

log = logging.getLogger(__name__)

_NO_INTERCONNECT = {"com.docker.network.bridge.enable_icc": "false"}
"""Containers on the bridge do not reach each other."""
_NETWORK_LIFETIME = 7 * 24 * 3600.0
"""Its own, whatever its sandboxes' is: who uses it keeps it, and else another is made. What a host
that is gone left would take up one of an engine's few ranges for as long as any task may take."""
_REMOVE_SECONDS = 10.0
_PAUSE = 0.1
_TICKET = "network"
_NO_NAME_SERVER = ("127.0.0.1",)
"""The container itself, in which nobody answers."""


class RunNetworks:
    """The networks that one backend uses, made or found when its first sandbox of a run wants one.

    Who made one may die before the others of its run: who uses it holds on to it by a container
    that never runs, as with volumes, so that nobody takes it for a dead process's.
    """

    def __init__(
        self, engine: Daemon, image: Callable[[], Awaitable[str]], turns: HostLocks
    ) -> None:
        self._engine = engine
        self._image = image
        """Makes sure of the image that containers which never run are made from."""
        self._turns = turns
        self._of_runs: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        """Of all networks that were ever used here, those too that somebody removed."""
        self._holders: list[str] = []
        self._turn = asyncio.Lock()

    async def of_run(self, labels: Labels) -> str:
        """The name of the run's network."""
        run = labels.run
        async with self._turn:
            if run not in self._of_runs:
                own = replace(labels, ticket=_TICKET, expires=time.time() + _NETWORK_LIFETIME)
                async with self._turns.take(_lock_name(run)):
                    network = await self._find(run) or await self._make(own)
                    self._runs[network] = run
                    await self._hold(network, own)
                self._of_runs[run] = network
            return self._of_runs[run]

    def forget(self, name: str) -> None:
        """Somebody removed it: the next sandbox gets a new one."""
        self._of_runs = {run: made for run, made in self._of_runs.items() if made != name}

    async def _find(self, run: str) -> str | None:
        rows = await self._engine.networks(f"{RUN}={run}", f"{TICKET}={_TICKET}")
        return min(rows, key=lambda row: (row.created, row.name)).name if rows else None

    async def _make(self, labels: Labels) -> str:
        # The engine takes letters, digits and a few signs in a name, and does not keep two from
        # having the same: the run stands in a label.
        name = f"plimsoll-{short_id()}"
        self._runs[name] = labels.run
        try:
            await run_to_completion(
                self._engine.create_network(name, to_docker(labels), options=_NO_INTERCONNECT)
            )
        except DaemonError as error:
            raise self._refused(error) from None
        first = await self._find(labels.run) or name
        if first != name:  # another host was at it, too
            await self._engine.remove_network(name)
        return first

    def _refused(self, error: DaemonError) -> SandboxUnavailable:
        if "address pool" not in error.said:
            return SandboxUnavailable(str(error))
        return SandboxUnavailable(
            f"the Docker engine at {self._engine.endpoint} has no range of addresses left "
            "for another network: remove networks nobody uses (plimsoll clean --expired, "
            "docker network prune), or give it more (default-address-pools in its "
            "daemon.json)"
        )

    async def _hold(self, network: str, labels: Labels) -> None:
        config = {
            "Image": await self._image(),
            "Entrypoint": ["/none"],
            "Labels": to_docker(labels),
            "HostConfig": {"NetworkMode": network},
        }
        holder = f"plimsoll-holds-{short_id()}"
        self._holders.append(holder)
        await run_to_completion(self._engine.create_container(config, holder))

    async def close(self) -> None:
        """Let go of them; who is the last of a run removes its network."""
        runs, self._runs, self._of_runs = self._runs, {}, {}
        holders, self._holders = self._holders, []
        for holder in holders:
            try:
                await self._engine.remove(holder)
            except SandboxError as error:
                log.warning("the container %s is left: %s", holder, error)
        for name, run in runs.items():
            try:
                async with self._turns.take(_lock_name(run)):
                    await self._remove(name)
            except SandboxError as error:
                log.warning("the network %s is left: %s", name, error)

    async def _remove(self, name: str) -> None:
        """Unless it is used."""
        if not await self._is_used(name):
            await remove_network(self._engine, name)

    async def _is_used(self, name: str) -> bool:
        rows = await self._engine.containers()
        return any(name in (row.network_settings.networks or {}) for row in rows)


async def remove_network(engine: Daemon, name: str, seconds: float = _REMOVE_SECONDS) -> None:
    """Remove a network that no container is in.

    The daemon may take a moment to see that the last container is out of it. One that restarted
    may also hold on to endpoints of containers that are gone: those are removed by force.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            await engine.remove_network(name)
            return
        except DaemonUnreachable:
            if time.monotonic() > deadline:
                raise
        except DaemonError as error:
            if "active endpoints" not in error.said or time.monotonic() > deadline:
                raise
            await _remove_dead_endpoints(engine, name)
        await asyncio.sleep(_PAUSE)


async def _remove_dead_endpoints(engine: Daemon, network: str) -> None:
    found = await engine.network(network)
    members = (found.containers if found is not None else None) or {}
    for container, member in members.items():
        if await engine.inspect(container) is None:
            with suppress(DaemonError):  # another process may have removed it
                await engine.disconnect(network, member.name)


def _lock_name(run: str) -> str:
    return f"network of {run}"


def is_missing_network(error: DaemonError) -> bool:
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
    return tuple(found) or _NO_NAME_SERVER
