"""Networks: one for each run, isolated sandboxes, and an allowlist without a way around."""

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import pytest

from parts import spec as plain_spec
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels, Owner, short_id
from plimsoll.core.permissions import (
    NO_NETWORK,
    PUBLIC,
    NetworkMode,
    NetworkPolicy,
)
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.inventory import DockerInventory
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.docker.network.run_networks import name_servers
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import Image, ImageSource, SandboxSpec
from plimsoll.sandboxes.reaper import reap


class Dockerd(Protocol):
    url: str


INTERFACES = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '"

RUN = f"networks-{short_id()}"


def spec(**more: Any) -> SandboxSpec:
    """A specification in a run of this test session: other sessions may use the daemon."""
    plain = plain_spec(**more)
    return replace(plain, labels=replace(plain.labels, run=RUN))


@pytest.fixture
async def docker(docker_daemon: str) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(DockerOptions(host=docker_daemon)) as started:
        yield started


@pytest.fixture
async def image(docker: DockerBackend) -> Image:
    return await docker.build(ImageSource(reference="debian:12"))


def _address_of_this_host() -> str:
    """An address of this host other than loopback; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        with suppress(OSError):
            end.connect(("192.0.2.1", 9))
        return end.getsockname()[0]


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, int]]:
    """A web server on an address of this host other than loopback."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()

    served = await asyncio.start_server(answer, "0.0.0.0", 0)
    yield _address_of_this_host(), served.sockets[0].getsockname()[1]
    served.close()
    await served.wait_closed()


def _fetch(url: str) -> list[str]:
    code = (
        "import sys, urllib.request, urllib.error\n"
        "try: print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())\n"
        "except urllib.error.HTTPError as error: print(error.code, error.read().decode())\n"
    )
    return ["python3", "-c", code, url]


def _connect(host: str, port: int, seconds: int = 3) -> list[str]:
    code = f"import socket; socket.create_connection(('{host}', {port}), {seconds})"
    return ["python3", "-c", code]


async def _networks(daemon: Daemon) -> list[str]:
    return [row.name for row in await daemon.networks(f"plimsoll.run={RUN}")]


def _listed(*hosts: str) -> NetworkPolicy:
    return NetworkPolicy(NetworkMode.ALLOWLIST, hosts)


async def test_only_a_public_sandbox_reaches_the_outside(
    docker: DockerBackend, image: Image, server: tuple[str, int]
):
    made = await docker.create(image, spec(network=PUBLIC))
    try:
        url = f"http://{server[0]}:{server[1]}/"
        assert (await made.exec(_fetch(url), timeout=60)).stdout.text == "hello\n"
        await made.set_network(NO_NETWORK)
        assert not (await made.exec(_connect(*server), timeout=60)).ok
        assert (await made.exec(INTERFACES)).stdout.text == "lo "
        await made.set_network(PUBLIC)
        assert (await made.exec(_fetch(url), timeout=60)).stdout.text == "hello\n"
    finally:
        await made.close()


async def test_a_run_has_one_network_removed_with_the_backend(docker_daemon: str, daemon: Daemon):
    async with DockerBackend(DockerOptions(host=docker_daemon)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        assert not await _networks(daemon)  # none before the first use
        made = await asyncio.gather(
            *(docker.create(image, spec(network=PUBLIC)) for _ in range(3)),
            docker.create(image, spec()),
        )
        await made[3].set_network(PUBLIC)
        assert len(await _networks(daemon)) == 1
        await asyncio.gather(*(one.close() for one in made))
    assert not await _networks(daemon)


async def test_processes_of_a_run_share_one_network_removed_with_the_last(
    docker_daemon: str, daemon: Daemon
):
    options = DockerOptions(host=docker_daemon)
    async with DockerBackend(options) as last:
        async with DockerBackend(options) as one, DockerBackend(options) as other:
            image = await one.build(ImageSource(reference="debian:12"))
            backends = (one, other, last)
            made = await asyncio.gather(*(b.create(image, spec(network=PUBLIC)) for b in backends))
            assert len(await _networks(daemon)) == 1
            await asyncio.gather(*(sandbox.close() for sandbox in made))
        (network,) = await _networks(daemon)  # although it has no sandbox now
        made = [await last.create(image, spec(network=PUBLIC))]
        assert await _networks(daemon) == [network]
        assert "eth" in (await made[0].exec(INTERFACES)).stdout.text
        await made[0].close()
    assert not await _networks(daemon)
    assert not await daemon.containers(f"plimsoll.run={RUN}")


async def test_a_network_outlives_its_killed_creator_while_its_run_uses_it(
    docker_daemon: str, daemon: Daemon
):
    async with DockerBackend(DockerOptions(host=docker_daemon)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        maker = Labels(RUN, "network", _dead(), time.time() + 3600)
        network = f"plimsoll-{short_id()}"
        await daemon.create_network(network, to_docker(maker))
        await (await docker.create(image, spec(network=PUBLIC))).close()
        assert await _networks(daemon) == [network]
        await reap(DockerInventory(daemon))
        assert await _networks(daemon) == [network]
    assert not await _networks(daemon)


def _dead() -> Owner:
    """A dead process of this host."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return replace(this_process(), pid=ended.pid, started="long ago")


async def test_a_network_expires_before_its_sandboxes(docker: DockerBackend, image: Image):
    day = 24 * 3600.0
    plain = spec(network=PUBLIC)
    labels = replace(plain.labels, expires=time.time() + 30 * day)
    made = await docker.create(image, replace(plain, labels=labels))
    items = await DockerInventory(docker.daemon).items()
    expiry = {item.name: item.labels.expires for item in items if item.labels.run == RUN}
    assert expiry.pop(made.id) > time.time() + 29 * day
    assert len(expiry) == 2  # the network and its holder
    assert all(time.time() + 6 * day < each < time.time() + 8 * day for each in expiry.values())
    await made.close()


async def test_sandboxes_cannot_reach_each_other(docker: DockerBackend, image: Image):
    one, other = await asyncio.gather(
        *(docker.create(image, spec(network=PUBLIC)) for _ in range(2))
    )
    try:
        await one.exec("python3 -m http.server 8000 >/tmp/log 2>&1 &")
        up = "until grep -q :1F40 /proc/net/tcp; do sleep 0.05; done"
        assert (await one.exec(up, timeout=60)).ok
        address = (await one.exec("hostname -i")).stdout.text.split()[0]
        assert (await one.exec(_connect(address, 8000, 30), timeout=60)).ok
        assert not (await other.exec(_connect(address, 8000), timeout=60)).ok
    finally:
        await asyncio.gather(one.close(), other.close())


async def test_an_allowlist_permits_only_its_hosts(
    docker: DockerBackend, image: Image, server: tuple[str, int]
):
    host, port = server
    made = await docker.create(image, spec(network=_listed(host)))
    try:
        assert (await made.exec(_fetch(f"http://{host}:{port}/"), timeout=60)).stdout.text == (
            "hello\n"
        )
        refused = await made.exec(_fetch("http://not-listed.example/"), timeout=60)
        assert refused.stdout.text.startswith("403 ")
        assert "not-listed.example" in refused.stdout.text
    finally:
        await made.close()


async def test_there_is_no_way_around_the_proxy_of_an_allowlist(
    docker: DockerBackend, image: Image, server: tuple[str, int]
):
    made = await docker.create(image, spec(network=_listed(server[0])))
    try:
        assert (await made.exec(INTERFACES)).stdout.text == "lo "
        assert not (await made.exec(_connect(*server), timeout=60)).ok
        unset = 'unset $(env | cut -d= -f1 | grep -i proxy); exec "$@"'
        direct = ["bash", "-c", unset, "-", *_connect(*server)]
        assert not (await made.exec(direct, timeout=60)).ok
        lookup = ["python3", "-c", "import socket; socket.getaddrinfo('example.org', 80)"]
        assert not (await made.exec(lookup, timeout=60)).ok
    finally:
        await made.close()


async def test_an_allowlist_applies_from_the_next_command_on(
    docker: DockerBackend, image: Image, server: tuple[str, int]
):
    host, port = server
    url = f"http://{host}:{port}/"
    made = await docker.create(image, spec())
    try:
        await made.set_network(_listed("elsewhere.example"))
        assert (await made.exec(_fetch(url), timeout=60)).stdout.text.startswith("403 ")
        await made.set_network(_listed(host))
        assert (await made.exec(_fetch(url), timeout=60)).stdout.text == "hello\n"
        await made.set_network(NO_NETWORK)
        assert not (await made.exec(_fetch(url), timeout=60)).ok
        assert "PROXY" not in (await made.exec("env")).stdout.text
    finally:
        await made.close()


async def test_concurrent_policies_end_as_one_of_them(docker: DockerBackend, image: Image):
    made = await docker.create(image, spec())
    try:
        for _ in range(3):
            await asyncio.gather(
                *(made.set_network(policy) for policy in (PUBLIC, NO_NETWORK, PUBLIC, NO_NETWORK))
            )
        assert (await made.exec(INTERFACES)).stdout.text == "lo "
    finally:
        await made.close()


async def test_a_cancelled_change_of_network_leaves_a_working_sandbox(
    docker: DockerBackend, image: Image
):
    made = await docker.create(image, spec())
    try:
        for step in range(6):
            changing = asyncio.create_task(made.set_network(PUBLIC))
            await asyncio.sleep(step * 0.01)
            changing.cancel()
            with suppress(asyncio.CancelledError):
                await changing
            await made.set_network(NO_NETWORK)
            assert (await made.exec(INTERFACES)).stdout.text == "lo "
    finally:
        await made.close()


async def test_closing_a_sandbox_during_a_change_of_network_leaves_no_network(
    docker_daemon: str, daemon: Daemon
):
    async with DockerBackend(DockerOptions(host=docker_daemon)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        for step in range(6):
            made = await docker.create(image, spec())
            changing = asyncio.create_task(made.set_network(PUBLIC))
            await asyncio.sleep(step * 0.02)
            await made.close()
            with suppress(SandboxUnavailable):
                await changing
    assert not await _networks(daemon)


async def test_a_removed_network_is_created_again(
    docker: DockerBackend, image: Image, daemon: Daemon
):
    made = await docker.create(image, spec(network=PUBLIC))
    await made.close()
    (name,) = await _networks(daemon)
    await daemon.remove_network(name)
    made = await docker.create(image, spec(network=PUBLIC))
    try:
        assert "eth" in (await made.exec(INTERFACES)).stdout.text
    finally:
        await made.close()


async def test_a_network_removed_before_a_change_to_it_is_created_again(
    docker: DockerBackend, image: Image, daemon: Daemon
):
    made = await docker.create(image, spec(network=PUBLIC))
    await made.close()
    (name,) = await _networks(daemon)
    await daemon.remove_network(name)
    made = await asyncio.gather(*(docker.create(image, spec()) for _ in range(2)))
    try:
        await asyncio.gather(*(sandbox.set_network(PUBLIC) for sandbox in made))
        for sandbox in made:
            assert "eth" in (await sandbox.exec(INTERFACES)).stdout.text
        assert len(await _networks(daemon)) == 1
    finally:
        await asyncio.gather(*(sandbox.close() for sandbox in made))


async def test_exhausted_address_ranges_name_the_remedy(dockerd: Dockerd):
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        filled: list[str] = []
        try:
            with suppress(DaemonError):
                for number in range(200):
                    await docker.daemon.create_network(f"fill-{number}", {})
                    filled.append(f"fill-{number}")
            with pytest.raises(SandboxUnavailable, match="default-address-pools"):
                await docker.create(image, spec(network=PUBLIC))
            plain = await docker.create(image, spec())  # a sandbox without a network still works
            await plain.close()
        finally:
            for name in filled:
                await docker.daemon.remove_network(name)


def test_a_name_server_on_loopback_is_not_used():
    assert name_servers("nameserver 127.0.0.1\nnameserver ::1\n") == ("127.0.0.1",)  # no server
    assert name_servers("search x\nnameserver 127.0.0.53\nnameserver 192.0.2.7") == ("192.0.2.7",)
    assert name_servers("nameserver\nnameserver nonsense\n") == ("127.0.0.1",)


class _Host(msgspec.Struct, rename="pascal"):
    dns: list[str] | None = None


class _Container(msgspec.Struct, rename="pascal"):
    host_config: _Host


async def test_every_sandbox_gets_name_servers_by_address(docker: DockerBackend, image: Image):
    for network in (NO_NETWORK, PUBLIC):
        made = await docker.create(image, spec(network=network))
        try:
            path = f"/containers/{made.id}/json"
            found = await docker.daemon.get(path, _Container, "inspect a container")
            assert found.host_config.dns
        finally:
            await made.close()


async def test_configured_name_servers_are_used(docker_daemon: str):
    options = DockerOptions(host=docker_daemon, dns=("192.0.2.53",))
    async with DockerBackend(options) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        assert "192.0.2.53" in (await made.exec("cat /etc/resolv.conf")).stdout.text
        await made.close()
