"""The network of a run: one bridge, on which sandboxes cannot reach each other.

All processes of a run share one network, because a daemon has only a few dozen address ranges.

Containers get their name servers by address. Otherwise a daemon whose host has a name server on
loopback would forward their queries, also for containers that have left the network: name
resolution would be a way out.
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
from plimsoll.sandboxes.docker.host_locks import HostLocks
from plimsoll.sandboxes.docker.labels import RUN, TICKET, to_docker

__all__ = ["RunNetworks", "is_missing_network", "name_servers", "remove_network"]

log = logging.getLogger(__name__)

_NO_INTERCONNECT = {"com.docker.network.bridge.enable_icc": "false"}
"""Containers on the bridge cannot reach each other."""
_NETWORK_LIFETIME = 7 * 24 * 3600.0
"""Lifetime in seconds of a network without users. It is shorter than that of its sandboxes, so that
a dead host does not occupy one of the daemon's few address ranges for long."""
_REMOVE_SECONDS = 10.0
_PAUSE = 0.1
_TICKET = "network"
_NO_NAME_SERVER = ("127.0.0.1",)
"""The container itself, where no name server listens."""


class RunNetworks:
    """The networks of one backend, found or created for the first sandbox of a run.

    The process that created a network may die before the others of its run. So each process that
    uses it connects a container that never runs, and the network is not reaped.
    """

    def __init__(
        self, daemon: Daemon, image: Callable[[], Awaitable[str]], locks: HostLocks
    ) -> None:
        self._daemon = daemon
        self._image = image
        """Ensures the image of the containers that never run; returns its name."""
        self._locks = locks
        self._by_run: dict[str, str] = {}
        self._run_of: dict[str, str] = {}
        """The run of every network used by this process, including removed ones."""
        self._holders: list[str] = []
        self._lock = asyncio.Lock()

    async def of_run(self, labels: Labels) -> str:
        """The name of the run's network."""
        run = labels.run
        async with self._lock:
            if run not in self._by_run:
                own = replace(labels, ticket=_TICKET, expires=time.time() + _NETWORK_LIFETIME)
                async with self._locks.acquire(_lock_name(run)):
                    network = await self._find(run) or await self._make(own)
                    self._run_of[network] = run
                    await self._hold(network, own)
                self._by_run[run] = network
            return self._by_run[run]

    def forget(self, name: str) -> None:
        """Forget a network that was removed; the next sandbox gets a new one."""
        self._by_run = {run: made for run, made in self._by_run.items() if made != name}

    async def _find(self, run: str) -> str | None:
        rows = await self._daemon.networks(f"{RUN}={run}", f"{TICKET}={_TICKET}")
        return min(rows, key=lambda row: (row.created, row.name)).name if rows else None

    async def _make(self, labels: Labels) -> str:
        # Network names allow few characters and need not be unique, so the run is in a label.
        name = f"plimsoll-{short_id()}"
        self._run_of[name] = labels.run
        try:
            await run_to_completion(
                self._daemon.create_network(name, to_docker(labels), options=_NO_INTERCONNECT)
            )
        except DaemonError as error:
            raise self._refused(error) from None
        first = await self._find(labels.run) or name
        if first != name:  # another host created one too
            await self._daemon.remove_network(name)
        return first

    def _refused(self, error: DaemonError) -> SandboxUnavailable:
        if "address pool" not in error.reason:
            return SandboxUnavailable(str(error))
        return SandboxUnavailable(
            f"the Docker daemon at {self._daemon.endpoint} has no address range left for "
            "another network: remove unused networks (plimsoll clean --expired, docker network "
            "prune), or add ranges (default-address-pools in its daemon.json)"
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
        await run_to_completion(self._daemon.create_container(config, holder))

    async def close(self) -> None:
        """Release the networks; the last user of a run's network removes it."""
        runs, self._run_of, self._by_run = self._run_of, {}, {}
        holders, self._holders = self._holders, []
        for holder in holders:
            try:
                await self._daemon.remove(holder)
            except SandboxError as error:
                log.warning("container %s could not be removed: %s", holder, error)
        for name, run in runs.items():
            try:
                async with self._locks.acquire(_lock_name(run)):
                    await self._remove_unused(name)
            except SandboxError as error:
                log.warning("network %s could not be removed: %s", name, error)

    async def _remove_unused(self, name: str) -> None:
        if not await self._is_used(name):
            await remove_network(self._daemon, name)

    async def _is_used(self, name: str) -> bool:
        rows = await self._daemon.containers()
        return any(name in (row.network_settings.networks or {}) for row in rows)


async def remove_network(daemon: Daemon, name: str, seconds: float = _REMOVE_SECONDS) -> None:
    """Remove a network without containers.

    The daemon may need a moment to notice that the last container left. After a restart it may
    also keep endpoints of removed containers; those are disconnected by force.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            await daemon.remove_network(name)
            return
        except DaemonUnreachable:
            if time.monotonic() > deadline:
                raise
        except DaemonError as error:
            if "active endpoints" not in error.reason or time.monotonic() > deadline:
                raise
            await _remove_dead_endpoints(daemon, name)
        await asyncio.sleep(_PAUSE)


async def _remove_dead_endpoints(daemon: Daemon, network: str) -> None:
    found = await daemon.network(network)
    members = (found.containers if found is not None else None) or {}
    for container, member in members.items():
        if await daemon.inspect(container) is None:
            with suppress(DaemonError):  # another process may have removed it
                await daemon.disconnect(network, member.name)


def _lock_name(run: str) -> str:
    return f"network of {run}"


def is_missing_network(error: DaemonError) -> bool:
    """Whether the daemon refused a call because a network does not exist."""
    return error.status == 404 and "network" in error.reason.lower()


def name_servers(resolv_conf: str) -> tuple[str, ...]:
    """The name servers of a resolv.conf that a container can reach, without loopback ones."""
    words = [line.split() for line in resolv_conf.splitlines()]
    named = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
    found: list[str] = []
    for name in named:
        with suppress(ValueError):
            if not ip_address(name).is_loopback:
                found.append(name)
    return tuple(found) or _NO_NAME_SERVER
