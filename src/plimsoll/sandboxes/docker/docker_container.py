"""The container of a sandbox on the daemon: create, start, change of network, removal."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.permissions import NetworkMode, NetworkPolicy
from plimsoll.sandboxes.container.sandbox import ContainerSandbox
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
from plimsoll.sandboxes.protocol import Mount, ServedSocket

__all__ = ["DockerContainer"]

_REASON_SECONDS = 8.0
_REMOVE_SECONDS = 30.0
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_NO_PROXY = dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1")


class DockerContainer:
    """The Docker implementation of `container.sandbox.ContainerHandle`."""

    def __init__(self, daemon: Daemon, networks: RunNetworks, spec: ContainerSpec) -> None:
        self._daemon = daemon
        self._networks = networks
        self._spec = spec
        self._stream: AttachStream | None = None
        self._network: str | None = spec.network
        """The network of the container; `none` for a container without one."""
        self._proxy: ServedSocket | None = None
        self._lock = asyncio.Lock()
        self._gone_reason = ""
        self._removed = False
        self._last_error = ""
        """The last error of its removal."""
        self.sandbox: ContainerSandbox | None = None
        """Set when the sandbox runs: the egress proxy is served through it."""

    @property
    def id(self) -> str:
        return self._spec.name

    @property
    def run(self) -> str:
        return self._spec.labels.run

    @property
    def removed(self) -> bool:
        return self._removed

    async def start(self, files: ContainerFiles) -> AttachStream:
        """Create the container, copy files, attach and start. After a failure call `remove`."""
        daemon, name = self._daemon, self._spec.name
        try:
            config = self._spec.config(await daemon.info())
            # The daemon completes a cancelled call: without waiting, the container could appear
            # after its removal.
            await run_to_completion(daemon.create_container(config, name))
            await check_volumes(daemon, name, files.volumes)
            if files.copies:
                async with tar_stream(lambda tar: _add_copies(tar, files.copies)) as tar:
                    await daemon.put_archive(name, "/", tar)
            self._stream = await daemon.attach(name)
            await run_to_completion(daemon.start(name))
        except DaemonError as error:
            if is_missing_network(error):
                raise ResourceRemoved(str(daemon.endpoint), self._spec.network) from None
            raise start_error(error, self._spec.image, str(daemon.endpoint)) from None
        return self._stream

    async def disconnect(self, reason: str) -> None:
        """Close the stream, so that the sandbox ends with this reason."""
        self._gone_reason = self._gone_reason or reason
        if self._stream is not None:
            await self._stream.close()

    async def exit_reason(self) -> str:
        """The reason why the stream ended unexpectedly."""
        if not self._gone_reason:
            self._gone_reason = await self._find_reason()
        return self._gone_reason

    async def _find_reason(self) -> str:
        endpoint = self._daemon.endpoint
        try:
            # A daemon that shuts down still answers on open connections.
            async with asyncio.timeout(_REASON_SECONDS), Daemon(endpoint) as fresh:
                found = await fresh.inspect(self._spec.name)
        except TimeoutError:
            return f"the Docker daemon at {endpoint} does not answer"
        except SandboxError as error:
            return f"the Docker daemon at {endpoint} restarted or is gone ({error})"
        if found is None or found.state.status in ("removing", "dead"):
            return f"the sandbox's container {self._spec.name} was removed by someone else"
        return self._describe_exit(found.state)

    def _describe_exit(self, state: ContainerState) -> str:
        if state.oom_killed:
            limit = self._spec.memory_mb
            detail = f"limit {limit} MB" if limit else "no limit was set"
            return f"the kernel killed the sandbox for memory ({detail})"
        if state.running:
            return (
                f"the Docker daemon at {self._daemon.endpoint} dropped the stream to container "
                f"{self._spec.name}, which still runs"
            )
        if state.exit_code == 137:
            return f"the sandbox's container {self._spec.name} was killed from outside"
        if state.exit_code in (0, 143):
            return f"the sandbox's container {self._spec.name} was stopped from outside"
        reason = f": {state.error}" if state.error else ""
        return f"the sandbox's init ended (exit {state.exit_code}){reason}"

    async def set_network(self, policy: NetworkPolicy) -> Mapping[str, str]:
        """Apply a policy. Returns the variables that commands need under it."""
        async with self._lock:
            return await run_to_completion(self._apply_network(policy))

    async def _apply_network(self, policy: NetworkPolicy) -> Mapping[str, str]:
        """Close the old access first, so that a failure leaves less access, not more."""
        if self._removed:
            raise SandboxUnavailable("the sandbox was closed")
        if self._proxy is not None:
            await self._proxy.close()
            self._proxy = None
        try:
            if policy.mode is NetworkMode.PUBLIC:
                await self._join_run_network()
                return {}
            await self._leave()
        except DaemonError as error:
            raise SandboxUnavailable(
                f"the network of the sandbox could not be changed: {error.reason}"
            ) from None
        return await self._start_proxy(policy) if policy.mode is NetworkMode.ALLOWLIST else {}

    async def _join_run_network(self) -> None:
        network = await self._networks.of_run(self._spec.labels)
        try:
            await self._join(network)
        except DaemonError as error:
            if not is_missing_network(error):
                raise
            self._networks.forget(network)  # it was removed by someone else
            await self._join(await self._networks.of_run(self._spec.labels))

    async def _join(self, network: str) -> None:
        if self._network == network:
            return
        if self._network is not None:
            await self._daemon.disconnect(self._network, self._spec.name)
            self._network = None
        await self._daemon.connect(network, self._spec.name)
        self._network = network

    async def _leave(self) -> None:
        # A container without a network has only loopback, like `none`.
        if self._network not in (None, NO_NETWORK_MODE):
            await self._daemon.disconnect(self._network, self._spec.name)
            self._network = None

    async def _start_proxy(self, policy: NetworkPolicy) -> Mapping[str, str]:
        if self.sandbox is None:
            raise SandboxUnavailable("the sandbox is not running yet")
        self._proxy = await self.sandbox.serve(0, EgressProxy(policy.allowed_hosts))
        proxy = f"http://127.0.0.1:{self._proxy.port}"
        return {**dict.fromkeys(_PROXY, proxy), **_NO_PROXY}

    async def remove(self) -> None:
        """Kill and remove the container with its anonymous volumes, in any state."""
        if self._removed:
            return
        if self._stream is not None:
            await self._stream.close()
        try:
            # Not during a change of network: the daemon could lose track of the network's
            # endpoints and refuse to remove it.
            async with asyncio.timeout(_REMOVE_SECONDS), self._lock:
                if not self._removed:
                    await self._until_removed()
                    self._removed = True
        except TimeoutError:
            reason = self._last_error or (
                "a process in it may not be killable, or the Docker daemon at "
                f"{self._daemon.endpoint} hangs"
            )
            raise SandboxUnavailable(
                f"the container {self._spec.name} could not be removed within "
                f"{_REMOVE_SECONDS:.0f} s: {reason}"
            ) from None

    async def _until_removed(self) -> None:
        pause, last = 0.05, time.monotonic() + _REMOVE_SECONDS / 2
        while True:
            try:
                await self._daemon.remove(self._spec.name)
                return
            except (DaemonError, DaemonUnreachable) as error:
                # Status 409: a removal is in progress, or a mount is still busy. A daemon that
                # restarts is back soon.
                self._last_error = str(error)
                in_progress = isinstance(error, DaemonError) and error.status == 409
                if not in_progress and time.monotonic() > last:
                    raise SandboxUnavailable(
                        f"the container {self._spec.name} could not be removed: {error}"
                    ) from None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)


def _add_copies(tar: Tar, files: Sequence[Mount]) -> None:
    for file in files:
        add_file(tar, file.source, file.target, 0o444)
