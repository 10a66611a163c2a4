"""A daemon restart costs no trial whose sandbox is not started yet, and leaves no network."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from aiohttp import web

from parts import spec
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels, short_id
from plimsoll.core.permissions import PUBLIC
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint
from plimsoll.sandboxes.docker.daemon.errors import DaemonError, DaemonUnreachable
from plimsoll.sandboxes.docker.inventory import DockerInventory
from plimsoll.sandboxes.docker.network.run_networks import remove_network
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.pool.options import PoolOptions, Reuse
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.protocol import ImageSource
from plimsoll.sandboxes.reaper import Resource

pytestmark = pytest.mark.timeout(300)

LEASES = 6


class Dockerd(Protocol):
    url: str

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...

    def signal(self, number: signal.Signals) -> None: ...


async def _go_down(dockerd: Dockerd, how: str) -> None:
    if how == "crash":
        dockerd.signal(signal.SIGKILL)
    await asyncio.to_thread(dockerd.stop)


@pytest.mark.parametrize(
    ("reuse", "how"),
    [(Reuse.NONE, "crash"), (Reuse.FRESH, "stop"), (Reuse.RESET, "crash"), (Reuse.RESET, "stop")],
)
async def test_starts_wait_for_a_restarting_daemon(dockerd: Dockerd, reuse: Reuse, how: str):
    backend = DockerBackend(DockerOptions(host=dockerd.url, wait_seconds=180.0))
    async with Pool(backend, PoolOptions(LEASES, reuse)) as pool:
        image = await pool.build(ImageSource(reference="debian:12"))
        leases = [asyncio.create_task(pool.create(image, spec())) for _ in range(LEASES)]
        # During the starts, then again during the second attempt.
        for _ in range(2):
            await _first_container(backend.daemon)
            await _go_down(dockerd, how)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(dockerd.start)
        sandboxes = await asyncio.gather(*leases)
        # Sandboxes from before the restart are dead and report it.
        alive = [one for one in sandboxes if (await one.status()).alive]
        for sandbox in alive:
            assert (await sandbox.exec("echo on")).stdout.text == "on\n"
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
        assert pool.warnings == () or "could not start" not in "".join(pool.warnings)
        again = await pool.create(image, spec())
        assert (await again.exec("echo on")).stdout.text == "on\n"
        await again.close()
    async with Daemon(find_endpoint(dockerd.url, None, {})) as daemon:
        assert await daemon.containers("plimsoll.run=test") == []


async def test_a_start_refused_by_a_daemon_that_shuts_down_is_repeated(
    docker_daemon: str, monkeypatch: pytest.MonkeyPatch
):
    """The daemon answers one call with an error, and is back two seconds later."""
    stream, back_at = Daemon.stream, 0.0

    def shutting_down(daemon: Daemon, method: str, path: str, *args: Any, **more: Any):
        nonlocal back_at
        if not back_at and path == "/networks":
            back_at = time.monotonic() + 2
            raise DaemonError("the daemon is shutting down", 500, "shutting down")
        if time.monotonic() < back_at:
            raise DaemonUnreachable("the daemon restarts")
        return stream(daemon, method, path, *args, **more)

    labels = Labels(f"restart-{short_id()}", "a.1", this_process(), time.time() + 600)
    async with DockerBackend(DockerOptions(host=docker_daemon)) as backend:
        image = await backend.build(ImageSource(reference="debian:12"))
        monkeypatch.setattr(Daemon, "stream", shutting_down)
        sandbox = await backend.create(image, replace(spec(network=PUBLIC), labels=labels))
        assert time.monotonic() >= back_at > 0
        assert (await sandbox.exec("echo on")).stdout.text == "on\n"


async def _first_container(daemon: Daemon) -> None:
    """Wait until a start is in progress."""
    deadline = time.monotonic() + 120
    while not await daemon.containers("plimsoll.run=test"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_an_unreachable_daemon_is_waited_for_as_configured(dockerd: Dockerd):
    options = PoolOptions(2, Reuse.FRESH)
    backend = DockerBackend(DockerOptions(host=dockerd.url, wait_seconds=2.0))
    async with Pool(backend, options) as pool:
        image = await pool.build(ImageSource(reference="debian:12"))
        await asyncio.to_thread(dockerd.stop)
        began = time.monotonic()
        with pytest.raises(SandboxUnavailable, match=r"cannot be reached|closed the connection"):
            await pool.create(image, spec())
        assert time.monotonic() - began >= 2.0
        await asyncio.to_thread(dockerd.start)


class StaleNetwork:
    """A fake daemon that keeps an endpoint of a removed container until it is disconnected."""

    def __init__(self, *, curable: bool = True) -> None:
        self.endpoints = {"ep-17": {"Name": "gone"}, "a1": {"Name": "alive"}}
        self.curable = curable
        self.removed = False

    async def handle(self, request: web.Request) -> web.Response:
        path = request.path.partition("/v1.41")[2] or request.path
        match request.method, path:
            case "GET", "/version":
                return web.json_response({"Version": "20.10.24", "ApiVersion": "1.41"})
            case "GET", "/networks/net":
                return web.json_response({"Id": "net", "Name": "net", "Containers": self.endpoints})
            case "GET", "/containers/a1/json":
                return web.json_response({"Id": "a1", "State": {}, "Config": {}})
            case "POST", "/networks/net/disconnect":
                order = await request.json()
                assert order == {"Container": "gone", "Force": True}, (
                    "only removed containers are disconnected"
                )
                if self.curable:
                    del self.endpoints["ep-17"]
                    del self.endpoints["a1"]  # it disappears meanwhile
                return web.Response()
            case "DELETE", "/networks/net":
                if self.endpoints:
                    message = "error while removing network: network net has active endpoints"
                    return web.json_response({"message": message}, status=403)
                self.removed = True
                return web.Response(status=204)
            case _:
                return web.json_response({"message": f"no such thing: {path}"}, status=404)


@asynccontextmanager
async def _served(stand_in: StaleNetwork, folder: Path) -> AsyncIterator[Daemon]:
    server = web.AppRunner(web.Application())
    server.app.router.add_route("*", "/{path:.*}", stand_in.handle)
    await server.setup()
    try:
        await web.UnixSite(server, str(folder / "sock")).start()
        async with Daemon(find_endpoint(f"unix://{folder}/sock", None, {})) as daemon:
            yield daemon
    finally:
        await server.cleanup()


async def test_endpoints_of_removed_containers_do_not_keep_a_network(tmp_path: Path):
    for remove in ("close", "reap"):
        stand_in = StaleNetwork()
        async with _served(stand_in, tmp_path) as daemon:
            if remove == "close":
                await remove_network(daemon, "net")
            else:
                await DockerInventory(daemon).remove(Resource("network", "net", spec().labels))
        assert stand_in.removed


async def test_a_network_that_cannot_be_removed_names_the_remedy(tmp_path: Path):
    async with _served(StaleNetwork(curable=False), tmp_path) as daemon:
        with pytest.raises(DaemonError, match=r"active endpoints.*restart the daemon"):
            await DockerInventory(daemon).remove(Resource("network", "net", spec().labels))
