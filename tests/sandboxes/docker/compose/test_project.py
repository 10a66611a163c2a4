"""Compose tasks on a real daemon: services beside the sandbox, removed completely."""

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from parts import need
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import Labels
from plimsoll.core.permissions import (
    NO_NETWORK,
    PUBLIC,
    NetworkMode,
    NetworkPolicy,
)
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.docker.compose.launcher import ComposeImage
from plimsoll.sandboxes.docker.compose.project import ComposeProject
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.errors import DaemonUnreachable
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import ImageSource, Limits, Sandbox, SandboxSpec

pytestmark = pytest.mark.usefixtures("compose")

WEB = """
  web:
    image: debian:bookworm-slim
    working_dir: /srv
    command: ["sh", "-c", "echo served > index.html; exec python3 -m http.server 80"]
    healthcheck:
      test: ["CMD", "python3", "-c", "import socket; socket.create_connection(('localhost', 80))"]
      interval: 0.5s
      retries: 60
"""
MAIN = """
services:
  main:
    depends_on: {web: {condition: service_healthy}}
"""


@pytest.fixture
async def docker(docker_daemon: str) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(DockerOptions(host=docker_daemon)) as docker:
        yield docker


@pytest.fixture
def run() -> str:
    """The name of a run of this test, which identifies its objects on the daemon."""
    return f"compose-{secrets.token_hex(4)}"


@pytest.fixture
def own(run: str) -> Callable[..., SandboxSpec]:
    def make(**more) -> SandboxSpec:
        return SandboxSpec(Labels(run, f"{run}.1", this_process(), time.time() + 600), **more)

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "environment"
    folder.mkdir()
    return folder


async def build(docker: DockerBackend, folder: Path, text: str) -> ComposeImage:
    (folder / "docker-compose.yaml").write_text(text)
    image = await docker.build(
        ImageSource(folder, reference="debian:12", compose=folder / "docker-compose.yaml")
    )
    assert isinstance(image, ComposeImage)
    return image


async def remaining(docker: DockerBackend, run: str) -> list[str]:
    """The objects of a run on the daemon, by name, without the run's network and its holder."""
    daemon, label = docker.daemon, f"plimsoll.run={run}"
    containers = [name for row in await daemon.containers(label) for name in row.names]
    return [
        *(name for name in containers if not name.startswith("/plimsoll-holds-")),
        *(row.name for row in await daemon.networks(label, f"plimsoll.ticket={run}.1")),
        *(row.name for row in await daemon.volumes(label)),
    ]


async def fetch(sandbox: Sandbox, url: str) -> str:
    """The response of a URL inside the sandbox; "" on failure."""
    program = (
        "import sys, urllib.request\n"
        "try: print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())\n"
        "except OSError as error: print(error, file=sys.stderr)"
    )
    done = await sandbox.exec(["python3", "-c", program, url])
    return done.stdout.text.strip()


async def test_services_are_reachable_by_name_and_removed_together(docker, folder, own, run):
    image = await build(docker, folder, MAIN + WEB)
    sandbox = await docker.create(image, own())
    try:
        assert await fetch(sandbox, "http://web/") == "served"
        seen = await sandbox.exec("getent hosts main")
        assert seen.ok
        assert len(await remaining(docker, run)) == 3
    finally:
        await sandbox.close()
    assert await remaining(docker, run) == []


async def test_concurrent_projects_are_isolated(docker, folder, own, run):
    image = await build(docker, folder, MAIN + WEB)
    one, two = await asyncio.gather(*(docker.create(image, own()) for _ in range(2)))
    assert await fetch(one, "http://web/") == await fetch(two, "http://web/") == "served"
    seen = {(await sandbox.exec("getent hosts web")).stdout.text for sandbox in (one, two)}
    assert len(seen) == 2
    await asyncio.gather(one.close(), two.close())
    assert await remaining(docker, run) == []


@pytest.fixture
def address() -> str:
    """An address of this host that containers with a network can reach."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False)
    addresses = [word for word in found.stdout.split() if "." in word]
    need("network", None if addresses else "this host has no address of its own")
    return addresses[0]


@pytest.fixture
async def here(address: str) -> AsyncIterator[str]:
    """The URL of a page served by this host."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nfrom the host")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, address, 0)
    yield f"http://{address}:{server.sockets[0].getsockname()[1]}/"
    server.close()


async def in_web(docker: DockerBackend, run: str, url: str) -> str:
    """The response of a URL inside the service `web`."""
    rows = await docker.daemon.containers(f"plimsoll.run={run}", "com.docker.compose.service=web")
    program = f"import urllib.request; print(urllib.request.urlopen('{url}', timeout=30).read())"
    done = await asyncio.to_thread(
        subprocess.run,
        ["docker", "exec", rows[0].id, "python3", "-c", program],
        env=os.environ | docker.daemon.endpoint.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


async def test_without_a_network_only_the_services_are_reachable(docker, folder, own, run, here):
    image = await build(docker, folder, MAIN + WEB)
    sandbox = await docker.create(image, own(network=NO_NETWORK))
    assert await fetch(sandbox, "http://web/") == "served"
    assert await fetch(sandbox, here) == ""
    assert await in_web(docker, run, here) == ""
    # Nor the daemon's host, at its usual address in a network.
    gateway = "ip=$(getent hosts web | cut -d' ' -f1); echo ${ip%.*}.1"
    address = (await sandbox.exec(gateway)).stdout.text.strip()
    connect = f"timeout 2 bash -c ': < /dev/tcp/{address}/1' 2>&1"
    assert "refused" not in (await sandbox.exec(connect)).stdout.text
    began = time.monotonic()
    assert not (await sandbox.exec("getent hosts files.example")).ok
    assert time.monotonic() - began < 15
    await sandbox.close()
    assert await remaining(docker, run) == []


async def test_a_public_network_includes_services_and_can_be_withdrawn(
    docker, folder, own, run, here
):
    image = await build(docker, folder, MAIN + WEB)
    sandbox = await docker.create(image, own(network=PUBLIC))
    for policy, expected in (
        (PUBLIC, "from the host"),
        (NO_NETWORK, ""),
        (PUBLIC, "from the host"),
    ):
        await sandbox.set_network(policy)
        assert await fetch(sandbox, here) == expected
        assert bool(await in_web(docker, run, here)) == bool(expected)
        assert await fetch(sandbox, "http://web/") == "served"
    await sandbox.close()
    assert await remaining(docker, run) == []


async def test_a_service_on_an_internal_network_has_no_route_outside(
    docker, folder, own, run, here
):
    web = WEB + "    networks: [inner]\n    cpus: 999\nnetworks: {inner: {internal: true}}\n"
    image = await build(docker, folder, MAIN + "    networks: [inner, default]" + web)
    sandbox = await docker.create(image, own(network=PUBLIC))
    assert await fetch(sandbox, here) == "from the host"
    assert await fetch(sandbox, "http://web/") == "served"
    assert await in_web(docker, run, here) == ""
    for policy in (NO_NETWORK, PUBLIC):
        await sandbox.set_network(policy)
    assert await in_web(docker, run, here) == ""
    await sandbox.close()
    assert await remaining(docker, run) == []


async def test_an_allowlist_is_enforced_with_services(docker, folder, own, here, address):
    image = await build(docker, folder, MAIN + WEB)
    policy = NetworkPolicy(NetworkMode.ALLOWLIST, (address,))
    sandbox = await docker.create(image, own(network=policy))
    assert await fetch(sandbox, here) == "from the host"
    assert await fetch(sandbox, "http://10.255.255.1/") == ""
    port = here.rstrip("/").rpartition(":")[2]
    assert not (await sandbox.exec(f"timeout 4 bash -c ': < /dev/tcp/{address}/{port}'")).ok
    await sandbox.close()


async def test_the_files_settings_of_main_are_applied(docker, folder, own):
    text = """
services:
  main:
    environment: {FROM_FILE: "a$$b", BOTH: file, ASKED: "${ASKED}"}
    working_dir: /somewhere
    hostname: boat
    extra_hosts: ["pier:192.0.2.7"]
    tmpfs: /memory
    mem_limit: 256m
    pids_limit: 100
    ulimits: {nofile: 321}
    volumes: ["./data:/data:ro", "./one.txt:/etc/one.txt", "vol:/vol", "/anonymous"]
    configs: [{source: two, target: /etc/two.txt}]
volumes: {vol: {}}
configs: {two: {content: "cost $$2"}}
"""
    (folder / "data").mkdir()
    (folder / "data/file").write_text("carried")
    (folder / "one.txt").write_text("one")
    image = await build(docker, folder, text)
    env = {"BOTH": "task", "ASKED": "yes"}
    sandbox = await docker.create(image, own(env=env, limits=Limits(pids=200)))
    script = """
echo $FROM_FILE $BOTH $ASKED; pwd; hostname; getent hosts pier; ulimit -n
cat /data/file /etc/one.txt /etc/two.txt; echo
touch /data/x 2>/dev/null || echo read-only
touch /vol/x /anonymous/x /memory/x && echo writable
"""
    done = await sandbox.exec(script)
    lines = done.stdout.text.split("\n")
    assert lines[:3] == ["a$b task yes", "/somewhere", "boat"]
    assert lines[3].split() == ["192.0.2.7", "pier"]
    assert lines[4:8] == ["321", "carriedonecost $2", "read-only", "writable"]
    await sandbox.close()
    assert (folder / "data/file").read_text() == "carried"


async def test_writes_of_services_do_not_reach_the_task(docker, folder, own):
    (folder / "data").mkdir()
    (folder / "data/file").write_text("mine")
    web = WEB + '    volumes: ["./data:/srv", "./data:/again"]\n'
    image = await build(docker, folder, MAIN + '    volumes: ["./data:/data"]' + web)
    sandbox = await docker.create(image, own())
    assert await fetch(sandbox, "http://web/file") == "mine"
    # A folder of the task is one volume for all its services.
    assert (await sandbox.exec("cat /data/index.html")).stdout.text == "served\n"
    await sandbox.close()
    assert sorted(path.name for path in (folder / "data").iterdir()) == ["file"]


async def test_services_with_a_dockerfile_are_built_once(docker, folder, own):
    (folder / "web").mkdir()
    (folder / "web/Dockerfile").write_text(
        "FROM debian:bookworm-slim AS base\nARG WORD=none\n"
        "RUN mkdir /www && echo $WORD > /www/word\n"
        "FROM base AS other\nRUN exit 1\n"
    )
    text = """
services:
  main: {}
  web:
    build: {context: web, target: base, args: {WORD: built}}
    working_dir: /www
    command: python3 -m http.server 80
    healthcheck: {test: "bash -c ': < /dev/tcp/localhost/80'", interval: 0.5s}
"""
    image = await build(docker, folder, text)
    assert (await build(docker, folder, text)).services == image.services
    sandbox = await docker.create(image, own())
    assert await fetch(sandbox, "http://web/word") == "built"
    await sandbox.close()


async def test_main_waits_for_a_service_to_complete(docker, folder, own):
    text = """
services:
  main:
    depends_on: {seed: {condition: service_completed_successfully}}
    volumes: ["vol:/vol"]
  seed:
    image: debian:bookworm-slim
    command: sh -c "sleep 0.5; echo seeded > /vol/file"
    volumes: ["vol:/vol"]
volumes: {vol: {}}
"""
    sandbox = await docker.create(await build(docker, folder, text), own())
    assert (await sandbox.exec("cat /vol/file")).stdout.text == "seeded\n"
    await sandbox.close()


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (
            "command: sh -c 'echo out of luck; exit 3'\n"
            "  main: {depends_on: {web: {condition: service_completed_successfully}}}",
            ["service web", "(exit 3)", "out of luck"],
        ),
        ("command: /no/such/program", ["could not be started", "/no/such/program"]),
        (
            "command: sh -c 'echo here; sleep 60'\n"
            "    healthcheck: {test: exit 1, interval: 0.2s, retries: 2}",
            ["service web", "unhealthy", "here"],
        ),
    ],
    ids=["ends", "cannot start", "unhealthy"],
)
async def test_a_failed_service_is_reported_with_its_output(
    docker, folder, own, run, service, words
):
    text = f"services:\n  web:\n    image: debian:bookworm-slim\n    {service}\n"
    image = await build(docker, folder, text)
    with pytest.raises(SandboxUnavailable) as caught:
        await docker.create(image, own())
    for word in words:
        assert word in str(caught.value)
    assert await remaining(docker, run) == []


async def test_services_are_hardened_like_the_sandbox(docker, folder, own, run):
    image = await build(docker, folder, MAIN + WEB)
    sandbox = await docker.create(image, own())
    rows = await docker.daemon.containers(f"plimsoll.run={run}", "com.docker.compose.service=web")
    found = await docker.daemon.get(f"/containers/{rows[0].id}/json", dict, "inspect")
    host = found["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert "NET_RAW" not in host["CapAdd"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert not host["Privileged"]
    assert not host["Binds"]
    assert not host["PortBindings"]
    assert host["PidsLimit"] > 0
    inside = await sandbox.exec("grep -E 'CapEff|NoNewPrivs' /proc/self/status")
    assert "00000000a00405fb" in inside.stdout.text
    assert "NoNewPrivs:\t1" in inside.stdout.text
    await sandbox.close()


@pytest.mark.parametrize("after", [0.05, 0.4, 1.0, 2.0])
async def test_a_cancelled_start_leaves_nothing(docker, folder, own, run, after):
    (folder / "data").mkdir()
    (folder / "data/file").write_text("x")
    image = await build(docker, folder, MAIN + WEB + '    volumes: ["./data:/data", "/x"]\n')
    starting = asyncio.create_task(docker.create(image, own(network=PUBLIC)))
    await asyncio.sleep(after)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await starting).close()
    assert await remaining(docker, run) == []


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from parts import spec
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import ImageSource, SandboxSpec

async def main(url, folder, run):
    async with DockerBackend(DockerOptions(host=url)) as backend:
        file = Path(folder, "docker-compose.yaml")
        image = await backend.build(ImageSource(file.parent, reference="debian:12", compose=file))
        await backend.create(image, SandboxSpec(Labels(run, f"{run}.1", this_process(), 4e9)))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_the_next_start_removes_the_objects_of_a_killed_owner(docker_daemon, folder, run):
    text = MAIN + WEB + '    volumes: ["vol:/vol"]\nvolumes: {vol: {}}\n'
    (folder / "docker-compose.yaml").write_text(text)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", KILLED, docker_daemon, folder, run]
    ended = await asyncio.to_thread(subprocess.run, argv, env=env, check=False, timeout=100)
    assert ended.returncode == -9
    async with DockerBackend(DockerOptions(host=docker_daemon)) as backend:
        assert await remaining(backend, run) == []


class Outage:
    """Makes the daemon unreachable for a backend when services are about to be ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.is_on, self.times = False, 1
        stream, until_ready = Daemon.stream, ComposeProject._until_ready

        def gone(daemon: Daemon, *args, **more):
            if self.is_on:
                raise DaemonUnreachable("the daemon restarts")
            return stream(daemon, *args, **more)

        async def ready(project: ComposeProject) -> None:
            if self.times:
                self.times, self.is_on = 0, True
                asyncio.get_running_loop().call_later(seconds, self.end)
            await until_ready(project)

        monkeypatch.setattr(Daemon, "stream", gone)
        monkeypatch.setattr(ComposeProject, "_until_ready", ready)

    def end(self) -> None:
        self.is_on = False


async def test_a_project_start_waits_for_a_restarting_daemon(docker, folder, own, run, monkeypatch):
    image = await build(docker, folder, MAIN + WEB)
    Outage(monkeypatch, seconds=2)
    sandbox = await docker.create(image, own())
    assert await fetch(sandbox, "http://web/") == "served"
    assert len(await remaining(docker, run)) == 3  # nothing remains of the first attempt
    await sandbox.close()
    assert await remaining(docker, run) == []


async def test_a_restart_while_services_start_is_waited_for(dockerd, folder, own, run, monkeypatch):
    first, started, is_ready = list[ComposeProject](), asyncio.Event(), ComposeProject._is_ready

    async def never_at_first(project: ComposeProject, *args: str) -> bool:
        if not first:
            first.append(project)
            started.set()
        return await is_ready(project, *args) and project is not first[0]

    monkeypatch.setattr(ComposeProject, "_is_ready", never_at_first)
    async with DockerBackend(DockerOptions(host=dockerd.url)) as docker:
        image = await build(docker, folder, MAIN + WEB)
        starting = asyncio.create_task(docker.create(image, own()))
        await started.wait()
        await asyncio.to_thread(dockerd.restart)
        sandbox = await starting
        assert await fetch(sandbox, "http://web/") == "served"
        assert len(await remaining(docker, run)) == 3
        await sandbox.close()
        assert await remaining(docker, run) == []


async def test_a_failed_project_removal_is_repeated_at_the_end(
    docker_daemon, daemon, folder, own, run, monkeypatch
):
    async with DockerBackend(DockerOptions(host=docker_daemon, wait_seconds=0.5)) as docker:
        image = await build(docker, folder, MAIN + WEB)
        outage = Outage(monkeypatch, seconds=60)
        with pytest.raises(DaemonUnreachable):
            await docker.create(image, own())
        outage.end()
        assert await remaining(docker, run) != []
    async with DockerBackend(DockerOptions(host=docker_daemon)) as docker:
        assert await remaining(docker, run) == []


async def test_a_removed_public_network_is_created_again_for_a_project(docker, folder, own, run):
    image = await build(docker, folder, MAIN + WEB)
    await (await docker.create(image, own(network=PUBLIC))).close()
    (network,) = await docker.daemon.networks(f"plimsoll.run={run}")
    await docker.daemon.remove_network(network.name)
    sandbox = await docker.create(image, own(network=PUBLIC))
    assert await fetch(sandbox, "http://web/") == "served"
    await sandbox.close()
    assert await remaining(docker, run) == []


async def test_a_task_with_only_main_needs_no_project_network(docker, folder, own, run):
    image = await build(docker, folder, "services: {main: {environment: {A: b}}}")
    sandbox = await docker.create(image, own())
    assert (await sandbox.exec("echo $A; ls /sys/class/net")).stdout.text == "b\nlo\n"
    assert len(await remaining(docker, run)) == 1
    await sandbox.close()
    assert await remaining(docker, run) == []


async def test_files_of_the_task_reach_services_of_a_remote_daemon(tls_daemon, folder, own, run):
    (folder / "data").mkdir()
    (folder / "data/file").write_text("carried")
    (folder / "one.txt").write_text("one")
    web = WEB + '    volumes: ["./data:/srv", "./one.txt:/srv/one.txt"]\n'
    options = DockerOptions(host=tls_daemon.url, certificates=tls_daemon.certificates)
    async with DockerBackend(options) as docker:
        image = await build(docker, folder, MAIN + '    volumes: ["./one.txt:/one.txt"]' + web)
        sandbox = await docker.create(image, own())
        assert await fetch(sandbox, "http://web/file") == "carried"
        assert await fetch(sandbox, "http://web/one.txt") == "one"
        assert (await sandbox.exec("cat /one.txt")).stdout.text == "one"
        await sandbox.close()
        assert await remaining(docker, run) == []


async def test_a_sandbox_with_services_cannot_be_reset(docker, folder, own):
    image = await build(docker, folder, MAIN + WEB)
    sandbox = await docker.create(image, own())
    await sandbox.baseline()
    assert "services" in await sandbox.reset()
    await sandbox.close()
