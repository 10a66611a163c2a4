"""One container from the engine's side: made, started, moved between networks, removed."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.permissions import NetworkMode, NetworkPolicy
from plimsoll.sandboxes.docker.container_spec import NO_NETWORK_MODE, ContainerSpec, start_error
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.client import AttachStream
from plimsoll.sandboxes.docker.daemon.errors import DaemonError, DaemonUnreachable, ResourceRemoved
from plimsoll.sandboxes.docker.daemon.responses import ContainerState
from plimsoll.sandboxes.docker.files.host_files import ContainerFiles, add_file
from plimsoll.sandboxes.docker.files.tar_stream import Tar, tar_stream
from plimsoll.sandboxes.docker.files.volumes import check_volumes
from plimsoll.sandboxes.docker.network.egress_proxy import EgressProxy
from plimsoll.sandboxes.docker.network.run_networks import RunNetworks, is_missing_network
from plimsoll.sandboxes.protocol import Mount, OnConnection, Served

__all__ = ["DockerContainer"]

_WHY_SECONDS = 8.0
_REMOVE_SECONDS = 30.0
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_NO_PROXY = dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1")


class _Sandbox(Protocol):
    async def serve(self, port: int, on_connection: OnConnection) -> Served: ...

    def look_at_disk(self) -> None: ...

    async def close(self) -> None: ...


class DockerContainer:
    """What a sandbox needs of the engine; see `container.sandbox.Keeper`."""

    def __init__(self, engine: Daemon, networks: RunNetworks, plan: ContainerSpec) -> None:
        self._engine = engine
        self._networks = networks
        self._plan = plan
        self._wire: AttachStream | None = None
        self._on: str | None = plan.network
        """The network that the container is in; one without any is in the engine's `none`."""
        self._egress: Served | None = None
        self._turn = asyncio.Lock()
        self._gone = ""
        self._removed = False
        self._trouble = ""
        """What its removal last met with."""
        self.sandbox: _Sandbox | None = None
        """Set once it runs: the way out that an allowlist leaves is served through it."""

    @property
    def id(self) -> str:
        return self._plan.name

    @property
    def run(self) -> str:
        return self._plan.labels.run

    @property
    def removed(self) -> bool:
        return self._removed

    async def start(self, carried: ContainerFiles) -> AttachStream:
        """Create, fill, attach and start. What there is of it after a failure is for `remove`."""
        engine, name = self._engine, self._plan.name
        try:
            config = self._plan.config(await engine.info())
            # The engine goes on with a call that nobody waits for any more: without waiting
            # there could be a container after its removal.
            await run_to_completion(engine.create_container(config, name))
            await check_volumes(engine, name, carried.volumes)
            if carried.copies:
                async with tar_stream(lambda tar: _add_copies(tar, carried.copies)) as tar:
                    await engine.put_archive(name, "/", tar)
            self._wire = await engine.attach(name)
            await run_to_completion(engine.start(name))
        except DaemonError as error:
            if is_missing_network(error):
                raise ResourceRemoved(str(engine.endpoint), self._plan.network) from None
            raise start_error(error, self._plan.image, str(engine.endpoint)) from None
        return self._wire

    async def hang_up(self, reason: str) -> None:
        """Give the container up, whether it is well or not: its stream ends for this reason."""
        self._gone = self._gone or reason
        if self._wire is not None:
            await self._wire.close()

    async def why_gone(self) -> str:
        """Why the stream ended that nobody here has closed."""
        if not self._gone:
            self._gone = await self._why()
        return self._gone

    async def _why(self) -> str:
        where = self._engine.endpoint
        try:
            # An engine on its way down still answers on the connections that there are.
            async with asyncio.timeout(_WHY_SECONDS), Daemon(where) as anew:
                found = await anew.inspect(self._plan.name)
        except TimeoutError:
            return f"the Docker engine at {where} does not answer"
        except SandboxError as error:
            return f"the Docker engine at {where} restarted or is gone ({error})"
        if found is None or found.state.status in ("removing", "dead"):
            return f"somebody removed the sandbox's container {self._plan.name}"
        return self._how_it_ended(found.state)

    def _how_it_ended(self, state: ContainerState) -> str:
        if state.oom_killed:
            limit = self._plan.memory_mb
            which = f"limit {limit} MB" if limit else "it had no limit of its own"
            return f"the kernel killed the sandbox for memory ({which})"
        if state.running:
            return (
                f"the Docker engine at {self._engine.endpoint} dropped the stream to container "
                f"{self._plan.name}, which still runs"
            )
        if state.exit_code == 137:
            return f"the sandbox's container {self._plan.name} was killed from outside"
        if state.exit_code in (0, 143):
            return f"the sandbox's container {self._plan.name} was stopped from outside"
        why = f": {state.error}" if state.error else ""
        return f"the sandbox's init ended (exit {state.exit_code}){why}"

    async def set_network(self, policy: NetworkPolicy) -> Mapping[str, str]:
        """Apply a policy; the variables that commands need under it."""
        async with self._turn:
            return await run_to_completion(self._switch(policy))

    async def _switch(self, policy: NetworkPolicy) -> Mapping[str, str]:
        """Whatever was open is closed first, so that a failure half way leaves less open."""
        if self._removed:
            raise SandboxUnavailable("the sandbox was closed")
        if self._egress is not None:
            await self._egress.close()
            self._egress = None
        try:
            if policy.mode is NetworkMode.PUBLIC:
                await self._join_run()
                return {}
            await self._leave()
        except DaemonError as error:
            raise SandboxUnavailable(
                f"the network of the sandbox could not be changed: {error.said}"
            ) from None
        return await self._serve(policy) if policy.mode is NetworkMode.ALLOWLIST else {}

    async def _join_run(self) -> None:
        network = await self._networks.of_run(self._plan.labels)
        try:
            await self._join(network)
        except DaemonError as error:
            if not is_missing_network(error):
                raise
            self._networks.forget(network)  # somebody removed it
            await self._join(await self._networks.of_run(self._plan.labels))

    async def _join(self, network: str) -> None:
        if self._on == network:
            return
        if self._on is not None:
            await self._engine.disconnect(self._on, self._plan.name)
            self._on = None
        await self._engine.connect(network, self._plan.name)
        self._on = network

    async def _leave(self) -> None:
        # A container that is in no network at all has only loopback, as with `none`.
        if self._on not in (None, NO_NETWORK_MODE):
            await self._engine.disconnect(self._on, self._plan.name)
            self._on = None

    async def _serve(self, policy: NetworkPolicy) -> Mapping[str, str]:
        if self.sandbox is None:
            raise SandboxUnavailable("the sandbox is not up yet")
        self._egress = await self.sandbox.serve(0, EgressProxy(policy.allowed_hosts))
        proxy = f"http://127.0.0.1:{self._egress.port}"
        return {**dict.fromkeys(_PROXY, proxy), **_NO_PROXY}

    async def remove(self) -> None:
        """Kill and remove the container with its own volumes, whatever state it is in."""
        if self._removed:
            return
        if self._wire is not None:
            await self._wire.close()
        try:
            # Not while it is being moved: an engine that loses count of who is in a network
            # cannot remove that network any more.
            async with asyncio.timeout(_REMOVE_SECONDS), self._turn:
                if not self._removed:
                    await self._until_removed()
                    self._removed = True
        except TimeoutError:
            why = self._trouble or (
                "a process in it may not be killable, or the Docker engine at "
                f"{self._engine.endpoint} hangs"
            )
            raise SandboxUnavailable(
                f"the container {self._plan.name} could not be removed within "
                f"{_REMOVE_SECONDS:.0f} s: {why}"
            ) from None

    async def _until_removed(self) -> None:
        pause, last = 0.05, time.monotonic() + _REMOVE_SECONDS / 2
        while True:
            try:
                await self._engine.remove(self._plan.name)
                return
            except (DaemonError, DaemonUnreachable) as error:
                # In progress already, or something still holds on to a mount for a moment; and an
                # engine that restarts is back in a moment, too.
                self._trouble = str(error)
                goes = isinstance(error, DaemonError) and error.status == 409
                if not goes and time.monotonic() > last:
                    raise SandboxUnavailable(
                        f"the container {self._plan.name} could not be removed: {error}"
                    ) from None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)


def _add_copies(tar: Tar, files: Sequence[Mount]) -> None:
    for file in files:
        add_file(tar, file.source, file.target, 0o444)
