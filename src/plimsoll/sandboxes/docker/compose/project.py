"""One started compose project: its networks, volumes, services, and the container of main.

Every resource carries the trial's labels, so that it can be found and removed without Compose.
Compose only creates and starts containers; it is waited for or killed.
"""

import asyncio
import io
import json
import stat
import tarfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.container.sandbox import ContainerSandbox
from plimsoll.sandboxes.docker.compose.compose_command import ComposeCommand, ComposeError
from plimsoll.sandboxes.docker.compose.compose_file import Tree, table
from plimsoll.sandboxes.docker.compose.layout import FileCopy, Layout, MainLayout
from plimsoll.sandboxes.docker.container_spec import NO_NETWORK_MODE, ContainerSpec
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.client import AttachStream
from plimsoll.sandboxes.docker.daemon.errors import DaemonError, DaemonUnreachable, ResourceRemoved
from plimsoll.sandboxes.docker.daemon.responses import (
    ContainerInspect,
    ContainerState,
    DaemonInfo,
)
from plimsoll.sandboxes.docker.docker_container import DockerContainer
from plimsoll.sandboxes.docker.files.host_files import ContainerFiles
from plimsoll.sandboxes.docker.files.tar_stream import (
    Tar,
    add_tree,
    tar_stream,
    walk_tree,
)
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.docker.network.run_networks import (
    RunNetworks,
    is_missing_network,
    remove_network,
)
from plimsoll.sandboxes.host.temporary import temporary_folder

__all__ = ["ComposeProject", "ComposeSandbox", "MainContainer"]

_NO_HOST_ADDRESS = {"com.docker.network.bridge.inhibit_ipv4": "true"}
"""The host gets no address in such a network, so containers cannot reach it there."""
_READY_SECONDS = 120.0
_MAX_READY_SECONDS = 1200.0
_CREATE_SECONDS = 120.0
_REMOVE_SECONDS = 30.0
_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 0.3
_LOG_LINES = "10"
_UNREACHABLE = "cannot connect to the docker daemon"
"""Part of Compose's message if the daemon is unreachable."""


class ComposeProject:
    """The services of one trial. `remove` may be called at any time and repeatedly."""

    def __init__(
        self,
        daemon: Daemon,
        compose: ComposeCommand | None,
        layout: Layout,
        image: str,
        labels: Labels,
    ) -> None:
        self._daemon = daemon
        self._compose = compose
        self._layout = layout
        self._image = image
        self._labels = to_docker(labels)
        self._filler = f"{layout.project}-fill"
        self._services: dict[str, str] = {}
        """The service of each container, by container id."""
        self._public = ""
        """The network with a route outside that the services start in; "" for none."""

    @property
    def name(self) -> str:
        return self._layout.project

    @property
    def main(self) -> MainLayout:
        """The layout of main's container."""
        return self._layout.main

    def adapt(self, config: Tree) -> Tree:
        """Adapt the create request of a sandbox to this project's main."""
        main = self.main
        host = {**table(config["HostConfig"]), **main.host}
        mounts = host.get("Mounts")
        host["Mounts"] = [*(mounts if isinstance(mounts, list) else []), *main.mounts]
        made: Tree = {**config, "HostConfig": host}
        if main.hostname:
            made["Hostname"] = main.hostname
        for network, aliases in list(main.networks.items())[:1]:
            host["NetworkMode"] = network
            made["NetworkingConfig"] = {"EndpointsConfig": {network: {"Aliases": aliases}}}
        return made

    async def complete(self, container: str) -> None:
        """Connect main's created container to its other networks, and copy its files."""
        # The create request takes only one network.
        for network, aliases in list(self.main.networks.items())[1:]:
            await self._daemon.connect(network, container, aliases)
        await self._copy_files(container, self.main.copies)

    @property
    def _routable(self) -> list[str]:
        """The containers of services that may have a route outside."""
        internal = self._layout.internal
        return [container for container, name in self._services.items() if name not in internal]

    async def join(self, network: str) -> None:
        """Connect the services to a network, without aliases."""
        for container in self._routable:
            await self._daemon.connect(network, container)

    async def leave(self, network: str) -> None:
        """Disconnect the services from a network."""
        for container in self._routable:
            await self._daemon.disconnect(network, container)

    async def start(self, public: str | None) -> None:
        """Create networks and volumes, start the services and wait until they are ready."""
        self._public = public or ""
        try:
            await self._create_resources()
            if self._compose is not None:
                await self._run(self._compose)
        except DaemonError as error:
            self._raise_if_removed(error.reason)
            raise _unavailable(self.name, error) from None

    async def _create_resources(self) -> None:
        layout, daemon = self._layout, self._daemon
        for name in layout.networks:
            making = daemon.create_network(
                name, self._labels, internal=True, options=_NO_HOST_ADDRESS
            )
            # The daemon completes a cancelled call, so it is waited for.
            await run_to_completion(making)
        for name in layout.volumes:
            await run_to_completion(daemon.create_volume(name, self._labels))
        if layout.folders:
            await self._fill()

    async def _fill(self) -> None:
        """Fill volumes from folders of the task, through a container that never runs."""
        mount_points = {name: f"/fill/{number}" for number, name in enumerate(self._layout.folders)}
        mounts = [
            {"Type": "volume", "Source": name, "Target": at, "VolumeOptions": {"NoCopy": True}}
            for name, at in mount_points.items()
        ]
        config = {
            "Image": self._image,
            "Entrypoint": ["/none"],
            "Labels": self._labels,
            "HostConfig": {"NetworkMode": "none", "Mounts": mounts},
        }
        await run_to_completion(self._daemon.create_container(config, self._filler))
        for name, folder in self._layout.folders.items():
            async with tar_stream(_write_folder(folder)) as tar:
                await self._daemon.put_archive(self._filler, mount_points[name], tar)
        await run_to_completion(self._daemon.remove(self._filler))

    def _raise_if_removed(self, message: str) -> None:
        if self._public and f"network {self._public} not found" in message:
            raise ResourceRemoved(str(self._daemon.endpoint), self._public) from None

    async def _run(self, compose: ComposeCommand) -> None:
        limit = min(max(_READY_SECONDS, self._layout.ready_seconds), _MAX_READY_SECONDS)
        with temporary_folder() as folder:
            file = folder / "compose.json"
            file.write_text(json.dumps(self._layout.compose))
            await self._command(compose, file, "create", seconds=_CREATE_SECONDS)
            rows = await self._daemon.containers(self._label)
            self._services = {
                row.id: (row.labels or {}).get("com.docker.compose.service", "") for row in rows
            }
            if self._public:
                await self.join(self._public)
            for container, service in self._services.items():
                await self._copy_files(container, self._layout.copies.get(service, ()))
            try:
                async with asyncio.timeout(limit):
                    await self._command(compose, file, "up", "--detach", seconds=limit)
                    await self._until_ready()
            except TimeoutError:
                problems = await self._not_ready()
                raise SandboxUnavailable(
                    f"services of the task are not ready after {limit:.0f} s: {problems}"
                ) from None

    async def _command(
        self, compose: ComposeCommand, file: Path, *args: str, seconds: float
    ) -> None:
        command, *options = args
        try:
            await compose.run(
                f"--project-name={self.name}",
                f"--file={file}",
                command,
                "--no-build",
                "--no-recreate",
                *options,
                endpoint=self._daemon.endpoint,
                seconds=seconds,
            )
        except ComposeError as error:
            await self._check_daemon()
            if _UNREACHABLE in str(error).lower():
                raise DaemonUnreachable(
                    f"the task's services could not be started: {error}"
                ) from None
            self._raise_if_removed(str(error))
            problems = await self._not_ready()
            raise SandboxUnavailable(
                f"the task's services could not be started: {problems or error}"
            ) from None

    async def _until_ready(self) -> None:
        """Wait for the conditions of main's `depends_on` and for every healthcheck."""
        waiting = dict(self._services)
        while waiting:
            for container, service in list(waiting.items()):
                if await self._is_ready(container, service):
                    del waiting[container]
            if waiting:
                await asyncio.sleep(_POLL_SECONDS)

    async def _is_ready(self, container: str, service: str) -> bool:
        state = await self._inspect(container)
        done = self.main.waits_for.get(service) == "service_completed_successfully"
        if state.status == "exited" and state.exit_code == 0:
            return True
        if state.status in ("exited", "dead", ""):
            await self._check_daemon()
            output = await self._last_output(container)
            raise SandboxUnavailable(
                f"service {service} of the task ended (exit {state.exit_code}): {output}"
            )
        health = state.health.status if state.health else ""
        if health == "unhealthy":
            output = await self._last_output(container)
            raise SandboxUnavailable(f"service {service} of the task is unhealthy: {output}")
        return not done and state.status == "running" and health in ("", "none", "healthy")

    async def _check_daemon(self) -> None:
        """Raise `DaemonUnreachable` if services end because the daemon does."""
        # A daemon that shuts down still answers on open connections.
        async with Daemon(self._daemon.endpoint):
            pass

    async def _not_ready(self) -> str:
        """The services that are not ready, with their last output."""
        problems: list[str] = []
        for container, service in self._services.items():
            state = await self._inspect(container)
            health = state.health.status if state.health else ""
            fine = state.status in ("running", "created") and health in ("", "none", "healthy")
            if not fine and not (state.status == "exited" and state.exit_code == 0):
                how = health or f"{state.status} (exit {state.exit_code})"
                output = await self._last_output(container)
                problems.append(f"service {service} is {how}: {output}")
        return "; ".join(problems)

    async def _inspect(self, container: str) -> ContainerState:
        path, doing = f"/containers/{container}/json", "inspect a container"
        return (await self._daemon.get(path, ContainerInspect, doing)).state

    async def _last_output(self, container: str) -> str:
        """The last lines of a service's output."""
        params = {"stdout": "1", "stderr": "1", "tail": _LOG_LINES}
        try:
            path, doing = f"/containers/{container}/logs", "read a container's output"
            raw = await self._daemon.call("GET", path, doing, params=params)
        except DaemonError as error:
            return error.reason
        return _demultiplex(raw)[-1000:].strip() or "no output"

    async def _copy_files(self, container: str, copies: Sequence[FileCopy]) -> None:
        if copies:
            async with tar_stream(_write_copies(copies)) as tar:
                await self._daemon.put_archive(container, "/", tar)

    @property
    def _label(self) -> str:
        return f"com.docker.compose.project={self.name}"

    async def remove(self, *, hurried: bool = False) -> None:
        """Remove services, networks and volumes. Main's container must be removed before.

        `hurried` is for a cancelled start: containers may still appear for a moment.
        """
        try:
            async with asyncio.timeout(_REMOVE_SECONDS):
                await self._daemon.remove(self._filler)
                while await self._remove_services(settle=hurried):
                    pass
                for name in self._layout.networks:
                    await _retry_conflicts(lambda name=name: remove_network(self._daemon, name))
                for name in self._layout.volumes:
                    await _retry_conflicts(lambda name=name: self._daemon.remove_volume(name))
        except TimeoutError:
            raise SandboxUnavailable(
                f"the services of project {self.name} could not be removed within "
                f"{_REMOVE_SECONDS:.0f} s"
            ) from None

    async def _remove_services(self, *, settle: bool) -> bool:
        """Remove the services' containers. Returns whether more may appear."""
        if self._compose is None:
            return False
        if settle:
            await asyncio.sleep(_SETTLE_SECONDS)
        rows = await self._daemon.containers(self._label)
        removing = (_retry_conflicts(lambda id=row.id: self._daemon.remove(id)) for row in rows)
        for failed in await asyncio.gather(*removing, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed
        return settle and bool(rows)


async def _retry_conflicts(removing: Callable[[], Awaitable[object]]) -> None:
    """Repeat a removal while the object is in use or being removed elsewhere."""
    while True:
        try:
            await removing()
            return
        except DaemonError as error:
            if error.status != 409:
                raise SandboxUnavailable(str(error)) from None
        await asyncio.sleep(_POLL_SECONDS)


def _write_folder(folder: Path) -> Callable[[Tar], None]:
    return lambda tar: add_tree(tar, walk_tree(folder))


def _write_copies(copies: Sequence[FileCopy]) -> Callable[[Tar], None]:
    def write(tar: Tar) -> None:
        for copy in copies:
            info = tarfile.TarInfo(copy.target.lstrip("/"))
            if isinstance(copy.content, bytes):
                data, info.mode = copy.content, 0o444
            else:
                data = copy.content.read_bytes()
                info.mode = stat.S_IMODE(copy.content.stat().st_mode)
            info.size, info.mtime = len(data), int(time.time())
            tar.addfile(info, io.BytesIO(data))

    return write


def _demultiplex(raw: bytes) -> str:
    """A container's output without the headers that name the stream."""
    text, at = b"", 0
    while at + 8 <= len(raw) and raw[at] in (0, 1, 2) and raw[at + 1 : at + 4] == b"\0\0\0":
        size = int.from_bytes(raw[at + 4 : at + 8], "big")
        text += raw[at + 8 : at + 8 + size]
        at += 8 + size
    return (text + raw[at:]).decode("utf-8", "replace")


def _unavailable(project: str, error: DaemonError) -> SandboxUnavailable:
    if "address pool" in error.reason:
        return SandboxUnavailable(
            f"the Docker daemon has no address range left for the network of {project}: remove "
            "unused networks (plimsoll clean --expired, docker network prune), or add ranges "
            "(default-address-pools in its daemon.json)"
        )
    return SandboxUnavailable(f"the task's services could not be started: {error}")


@dataclass(frozen=True, slots=True)
class _MainContainerSpec(ContainerSpec):
    """The specification of main's container."""

    project: ComposeProject | None = None

    def config(self, info: DaemonInfo) -> dict[str, object]:
        config = ContainerSpec.config(self, info)
        return self.project.adapt(config) if self.project else config


class MainContainer(DockerContainer):
    """Main's container. Changes of network and the removal apply to the whole project.

    Main always stays in the project's own networks, which have no route outside.
    """

    def __init__(
        self, daemon: Daemon, networks: RunNetworks, spec: ContainerSpec, project: ComposeProject
    ) -> None:
        parts = {part.name: getattr(spec, part.name) for part in fields(spec)}
        super().__init__(daemon, networks, _MainContainerSpec(**parts, project=project))
        self._project = project
        self._project_removed = False
        """Whether the services, networks and volumes are removed."""
        self._public = spec.network if spec.network != NO_NETWORK_MODE else None
        if project.main.networks:
            self._network = None

    async def start(self, files: ContainerFiles) -> AttachStream:
        stream = await super().start(files)
        await self._project.complete(self._spec.name)
        if self._project.main.networks and self._public is not None:
            try:
                await super()._join(self._public)
            except DaemonError as error:
                if is_missing_network(error):
                    raise ResourceRemoved(str(self._daemon.endpoint), self._public) from None
                raise
        return stream

    async def _join(self, network: str) -> None:
        joined = self._network == network
        await super()._join(network)
        if not joined:
            await self._project.join(network)

    async def _leave(self) -> None:
        left = self._network
        await super()._leave()
        if left not in (None, NO_NETWORK_MODE):
            await self._project.leave(left)

    @property
    def removed(self) -> bool:
        return super().removed and self._project_removed

    async def remove(self) -> None:
        await super().remove()
        if not self._project_removed:
            await self._project.remove()
            self._project_removed = True


class ComposeSandbox(ContainerSandbox):
    """The sandbox in main's container. It cannot be reset, because its services cannot."""

    async def reset(self) -> str:
        return "the services beside it keep their state"
