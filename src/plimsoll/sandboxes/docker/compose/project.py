"""One started project: its networks, volumes and services, and their end.

Whatever is made carries the trial's labels, so that all of it can be found and removed without
Compose. Compose only creates and starts containers, and is waited for or killed.

Main's container as a sandbox: like any other, with its project around it.
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

import msgspec

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
from plimsoll.sandboxes.docker.daemon.responses import DaemonInfo
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

_CLOSED = {"com.docker.network.bridge.inhibit_ipv4": "true"}
"""The host has no address in such a network, so its services are not reached from it."""
_READY_SECONDS = 120.0
_LONGEST_READY = 1200.0
_CREATE_SECONDS = 120.0
_REMOVE_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_SETTLE_SECONDS = 0.3
_LOG_LINES = "10"
_NO_ENGINE = "cannot connect to the docker daemon"
"""What Compose says where the engine is not there."""


class _Response(msgspec.Struct, frozen=True, rename="pascal"):
    """What the engine answers, as far as it is read here."""


class _Health(_Response, frozen=True):
    status: str = ""


class _State(_Response, frozen=True):
    status: str = ""
    exit_code: int = 0
    health: _Health | None = None


class _ContainerHealth(_Response, frozen=True):
    state: _State = _State()


class ComposeProject:
    """The services of one trial. `remove` may be called at any time, and again."""

    def __init__(
        self,
        engine: Daemon,
        compose: ComposeCommand | None,
        layout: Layout,
        image: str,
        labels: Labels,
    ) -> None:
        self._engine = engine
        self._compose = compose
        self._layout = layout
        self._image = image
        self._labels = to_docker(labels)
        self._filler = f"{layout.project}-fill"
        self._services: dict[str, str] = {}
        """Containers, by id, with the name of their service."""
        self._public = ""
        """The network in which they start that leads outside."""

    @property
    def name(self) -> str:
        return self._layout.project

    @property
    def main(self) -> MainLayout:
        """What main's container is to be given."""
        return self._layout.main

    def adapt(self, config: Tree) -> Tree:
        """The engine's create call for a sandbox, made one for this project's main."""
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
        """What main's container, once created, still lacks: its other networks, and files."""
        # An engine takes one network only when it creates a container.
        for network, aliases in list(self.main.networks.items())[1:]:
            body = {"Container": container, "EndpointConfig": {"Aliases": aliases}}
            path = f"/networks/{network}/connect"
            await self._engine.call("POST", path, "connect a container to a network", json=body)
        await self._put(container, self.main.copies)

    @property
    def _open(self) -> list[str]:
        """The containers of services that may have a way out."""
        shut = self._layout.shut
        return [container for container, name in self._services.items() if name not in shut]

    async def join(self, network: str) -> None:
        """Put the services into a network, where none knows another by name."""
        for container in self._open:
            await self._engine.connect(network, container)

    async def leave(self, network: str) -> None:
        """Take the services out of a network."""
        for container in self._open:
            await self._engine.disconnect(network, container)

    async def start(self, public: str | None) -> None:
        """Make networks and volumes, and start the services until all are ready."""
        self._public = public or ""
        try:
            await self._make_places()
            if self._compose is not None:
                await self._run(self._compose)
        except DaemonError as error:
            self._look_for_lost(error.said)
            raise _unavailable(self.name, error) from None

    async def _make_places(self) -> None:
        layout, engine = self._layout, self._engine
        for name in layout.networks:
            making = engine.create_network(name, self._labels, internal=True, options=_CLOSED)
            # The engine goes on with a call that nobody waits for any more.
            await run_to_completion(making)
        for name in layout.volumes:
            await run_to_completion(engine.create_volume(name, self._labels))
        if layout.folders:
            await self._fill()

    async def _fill(self) -> None:
        """Fill volumes through a container that never runs."""
        places = {name: f"/fill/{number}" for number, name in enumerate(self._layout.folders)}
        mounts = [
            {"Type": "volume", "Source": name, "Target": at, "VolumeOptions": {"NoCopy": True}}
            for name, at in places.items()
        ]
        config = {
            "Image": self._image,
            "Entrypoint": ["/none"],
            "Labels": self._labels,
            "HostConfig": {"NetworkMode": "none", "Mounts": mounts},
        }
        await run_to_completion(self._engine.create_container(config, self._filler))
        for name, folder in self._layout.folders.items():
            async with tar_stream(_whole(folder)) as tar:
                await self._engine.put_archive(self._filler, places[name], tar)
        await run_to_completion(self._engine.remove(self._filler))

    def _look_for_lost(self, said: str) -> None:
        if self._public and f"network {self._public} not found" in said:
            raise ResourceRemoved(str(self._engine.endpoint), self._public) from None

    async def _run(self, compose: ComposeCommand) -> None:
        limit = min(max(_READY_SECONDS, self._layout.patience), _LONGEST_READY)
        with temporary_folder() as folder:
            file = folder / "compose.json"
            file.write_text(json.dumps(self._layout.compose))
            await self._command(compose, file, "create", seconds=_CREATE_SECONDS)
            rows = await self._engine.containers(self._label)
            self._services = {
                row.id: (row.labels or {}).get("com.docker.compose.service", "") for row in rows
            }
            if self._public:
                await self.join(self._public)
            for container, service in self._services.items():
                await self._put(container, self._layout.copies.get(service, ()))
            try:
                async with asyncio.timeout(limit):
                    await self._command(compose, file, "up", "--detach", seconds=limit)
                    await self._until_ready()
            except TimeoutError:
                waiting = await self._not_ready()
                raise SandboxUnavailable(
                    f"services of the task are not ready after {limit:.0f} s: {waiting}"
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
                endpoint=self._engine.endpoint,
                seconds=seconds,
            )
        except ComposeError as error:
            await self._ask_anew()
            if _NO_ENGINE in str(error).lower():
                raise DaemonUnreachable(
                    f"the task's services could not be started: {error}"
                ) from None
            self._look_for_lost(str(error))
            waiting = await self._not_ready()
            raise SandboxUnavailable(
                f"the task's services could not be started: {waiting or error}"
            ) from None

    async def _until_ready(self) -> None:
        """Wait as main's `depends_on` says, and for every healthcheck."""
        waiting = dict(self._services)
        while waiting:
            for container, service in list(waiting.items()):
                if await self._is_ready(container, service):
                    del waiting[container]
            if waiting:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _is_ready(self, container: str, service: str) -> bool:
        state = await self._look(container)
        done = self.main.waits_for.get(service) == "service_completed_successfully"
        if state.status == "exited" and state.exit_code == 0:
            return True
        if state.status in ("exited", "dead", ""):
            await self._ask_anew()
            told = await self._said(container)
            raise SandboxUnavailable(
                f"service {service} of the task ended (exit {state.exit_code}): {told}"
            )
        health = state.health.status if state.health else ""
        if health == "unhealthy":
            told = await self._said(container)
            raise SandboxUnavailable(f"service {service} of the task is unhealthy: {told}")
        return not done and state.status == "running" and health in ("", "none", "healthy")

    async def _ask_anew(self) -> None:
        """Raise `DaemonUnreachable` where services end because the daemon does."""
        # An engine on its way down still answers on the connections that there are.
        async with Daemon(self._engine.endpoint):
            pass

    async def _not_ready(self) -> str:
        """Which services are not as they should be, and what they said last."""
        told: list[str] = []
        for container, service in self._services.items():
            state = await self._look(container)
            health = state.health.status if state.health else ""
            fine = state.status in ("running", "created") and health in ("", "none", "healthy")
            if not fine and not (state.status == "exited" and state.exit_code == 0):
                how = health or f"{state.status} (exit {state.exit_code})"
                told.append(f"service {service} is {how}: {await self._said(container)}")
        return "; ".join(told)

    async def _look(self, container: str) -> _State:
        path, doing = f"/containers/{container}/json", "inspect a container"
        return (await self._engine.get(path, _ContainerHealth, doing)).state

    async def _said(self, container: str) -> str:
        """The last lines that a service printed."""
        params = {"stdout": "1", "stderr": "1", "tail": _LOG_LINES}
        try:
            path, doing = f"/containers/{container}/logs", "read a container's output"
            raw = await self._engine.call("GET", path, doing, params=params)
        except DaemonError as error:
            return error.said
        return _demultiplexed(raw)[-1000:].strip() or "it said nothing"

    async def _put(self, container: str, copies: Sequence[FileCopy]) -> None:
        if copies:
            async with tar_stream(_files(copies)) as tar:
                await self._engine.put_archive(container, "/", tar)

    @property
    def _label(self) -> str:
        return f"com.docker.compose.project={self.name}"

    async def remove(self, *, hurried: bool = False) -> None:
        """Remove services, networks and volumes. Main's container is removed before.

        `hurried` is for a start that was cut short: what the engine was still told to make may
        come late.
        """
        try:
            async with asyncio.timeout(_REMOVE_SECONDS):
                await self._engine.remove(self._filler)
                while await self._remove_services(settle=hurried):
                    pass
                for name in self._layout.networks:
                    await _retry_conflicts(lambda name=name: remove_network(self._engine, name))
                for name in self._layout.volumes:
                    await _retry_conflicts(lambda name=name: self._engine.remove_volume(name))
        except TimeoutError:
            raise SandboxUnavailable(
                f"the services of project {self.name} could not be removed within "
                f"{_REMOVE_SECONDS:.0f} s"
            ) from None

    async def _remove_services(self, *, settle: bool) -> bool:
        """Remove the containers there are; whether more may come."""
        if self._compose is None:
            return False
        if settle:
            await asyncio.sleep(_SETTLE_SECONDS)
        rows = await self._engine.containers(self._label)
        removing = (_retry_conflicts(lambda id=row.id: self._engine.remove(id)) for row in rows)
        for failed in await asyncio.gather(*removing, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed
        return settle and bool(rows)


async def _retry_conflicts(removing: Callable[[], Awaitable[object]]) -> None:
    """Remove something that may be in use, or be removed by another, for a moment."""
    while True:
        try:
            await removing()
            return
        except DaemonError as error:
            if error.status != 409:
                raise SandboxUnavailable(str(error)) from None
        await asyncio.sleep(_LOOK_SECONDS)


def _whole(folder: Path) -> Callable[[Tar], None]:
    return lambda tar: add_tree(tar, walk_tree(folder))


def _files(copies: Sequence[FileCopy]) -> Callable[[Tar], None]:
    def make(tar: Tar) -> None:
        for copy in copies:
            info = tarfile.TarInfo(copy.target.lstrip("/"))
            if isinstance(copy.content, bytes):
                data, info.mode = copy.content, 0o444
            else:
                data = copy.content.read_bytes()
                info.mode = stat.S_IMODE(copy.content.stat().st_mode)
            info.size, info.mtime = len(data), int(time.time())
            tar.addfile(info, io.BytesIO(data))

    return make


def _demultiplexed(raw: bytes) -> str:
    """What a container printed, without the engine's marks of which stream it was."""
    text, at = b"", 0
    while at + 8 <= len(raw) and raw[at] in (0, 1, 2) and raw[at + 1 : at + 4] == b"\0\0\0":
        size = int.from_bytes(raw[at + 4 : at + 8], "big")
        text += raw[at + 8 : at + 8 + size]
        at += 8 + size
    return (text + raw[at:]).decode("utf-8", "replace")


def _unavailable(project: str, error: DaemonError) -> SandboxUnavailable:
    if "address pool" in error.said:
        return SandboxUnavailable(
            f"the engine has no range of addresses left for the network of {project}: remove "
            "networks nobody uses (plimsoll clean --expired, docker network prune), or give it "
            "more (default-address-pools in its daemon.json)"
        )
    return SandboxUnavailable(f"the task's services could not be started: {error}")


@dataclass(frozen=True, slots=True)
class _MainContainerSpec(ContainerSpec):
    """The container of a project's main before it is made."""

    project: ComposeProject | None = None

    def config(self, info: DaemonInfo) -> dict[str, object]:
        config = ContainerSpec.config(self, info)
        return self.project.adapt(config) if self.project else config


class MainContainer(DockerContainer):
    """Moves a whole project between networks, and removes all of it.

    Main stays in the project's own networks, whatever the policy is: they lead nowhere else.
    """

    def __init__(
        self, engine: Daemon, networks: RunNetworks, plan: ContainerSpec, project: ComposeProject
    ) -> None:
        parts = {part.name: getattr(plan, part.name) for part in fields(plan)}
        super().__init__(engine, networks, _MainContainerSpec(**parts, project=project))
        self._project = project
        self._alone = False
        """Whether the project is removed."""
        self._public = plan.network if plan.network != NO_NETWORK_MODE else None
        if project.main.networks:
            self._on = None

    async def start(self, carried: ContainerFiles) -> AttachStream:
        wire = await super().start(carried)
        await self._project.complete(self._plan.name)
        if self._project.main.networks and self._public is not None:
            try:
                await super()._join(self._public)
            except DaemonError as error:
                if is_missing_network(error):
                    raise ResourceRemoved(str(self._engine.endpoint), self._public) from None
                raise
        return wire

    async def _join(self, network: str) -> None:
        joined = self._on == network
        await super()._join(network)
        if not joined:
            await self._project.join(network)

    async def _leave(self) -> None:
        left = self._on
        await super()._leave()
        if left not in (None, NO_NETWORK_MODE):
            await self._project.leave(left)

    @property
    def removed(self) -> bool:
        return super().removed and self._alone

    async def remove(self) -> None:
        await super().remove()
        if not self._alone:
            await self._project.remove()
            self._alone = True


class ComposeSandbox(ContainerSandbox):
    """Main, which can be put back to its beginning where its services cannot."""

    async def reset(self) -> str:
        return "the services beside it keep what they were told"
