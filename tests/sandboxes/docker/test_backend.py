"""The backend as a whole: its errors at the start, and that it leaves nothing behind."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from docker_calls import kill, running_containers
from parts import spec as plain_spec
from plimsoll.core.errors import SandboxUnavailable, SandboxUnsupported
from plimsoll.core.ids import Labels, Owner, short_id
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.images.image_store import DockerImage
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import Image, ImageSource, SandboxSpec

RUN = f"backend-{short_id()}"


def spec(**more: Any) -> SandboxSpec:
    """A specification in a run of this test session: other sessions may use the daemon."""
    plain = plain_spec(**more)
    return replace(plain, labels=replace(plain.labels, run=RUN))


async def _remaining(daemon: Daemon) -> list[str]:
    """The remaining containers, networks and volumes of this session's run."""
    label = f"plimsoll.run={RUN}"
    rows = (
        *await daemon.containers(label),
        *await daemon.networks(label),
        *await daemon.volumes(label),
    )
    return [str(row) for row in rows]


@pytest.fixture
async def docker(docker_daemon: str) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(DockerOptions(host=docker_daemon)) as started:
        yield started


@pytest.fixture
async def image(docker: DockerBackend) -> Image:
    return await docker.build(ImageSource(reference="debian:12"))


async def test_a_create_cancelled_at_any_moment_leaves_nothing(docker: DockerBackend, image: Image):
    started = time.monotonic()
    await (await docker.create(image, spec())).close()
    whole = time.monotonic() - started
    for step in range(16):
        creating = asyncio.create_task(docker.create(image, spec()))
        await asyncio.sleep(step * whole / 16)
        creating.cancel()
        with suppress(asyncio.CancelledError):
            await (await creating).close()
        assert not await _remaining(docker.daemon)


async def test_failed_creates_leave_nothing_and_report_the_reason(
    docker: DockerBackend, image: Image
):
    gone = DockerImage(key=f"sha256:{'0' * 64}", name="gone", env={}, workdir="/", user="root")
    with pytest.raises(SandboxUnavailable, match="was removed from the Docker daemon"):
        await docker.create(gone, spec())
    with pytest.raises((SandboxUnavailable, SandboxUnsupported), match="passwd"):
        await docker.create(image, spec(workdir="/etc/passwd/below"))
    assert not await _remaining(docker.daemon)


async def test_an_image_of_another_backend_is_refused(docker: DockerBackend):
    class Other:
        key, env, workdir, user = "other", dict[str, str](), "/", "root"

    with pytest.raises(SandboxUnsupported, match="other"):
        await docker.create(Other(), spec())


async def test_leaving_the_backend_closes_open_sandboxes(docker_daemon: str, daemon: Daemon):
    async with DockerBackend(DockerOptions(host=docker_daemon)) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await asyncio.gather(*(docker.create(image, spec()) for _ in range(3)))
        assert len(await _remaining(daemon)) == 3
    assert not await _remaining(daemon)
    assert not any([(await sandbox.status()).alive for sandbox in made])


async def test_entering_cancelled_at_any_moment_leaves_nothing(docker_daemon: str, daemon: Daemon):
    async def own() -> set[str]:
        mine = f"plimsoll.owner={to_docker(spec().labels)['plimsoll.owner']}"
        return {row.id for row in await daemon.containers(mine)}

    before = await own()
    for step in range(8):
        backend = DockerBackend(DockerOptions(host=docker_daemon))
        entering = asyncio.create_task(backend.__aenter__())
        await asyncio.sleep(step * 0.1)
        entering.cancel()
        with suppress(asyncio.CancelledError):
            await entering
            await backend.__aexit__(None, None, None)
        assert await own() <= before


async def test_a_container_killed_or_removed_from_outside_is_reported(
    docker: DockerBackend, image: Image
):
    ends: dict[str, Callable[[str], Awaitable[object]]] = {
        "killed from outside": lambda name: kill(docker.daemon, name),
        "stopped from outside": lambda name: kill(docker.daemon, name, "TERM"),
        "removed|killed from outside": docker.daemon.remove,
    }
    for words, end in ends.items():
        made = await docker.create(image, spec())
        running = asyncio.create_task(made.exec("sleep 600"))
        await asyncio.sleep(0.2)
        await end(made.id)
        with pytest.raises(SandboxUnavailable, match=words):
            await asyncio.wait_for(running, 60)
        status = await made.status()
        assert not status.alive
        assert re.search(words, status.reason)
        await made.close()
    assert not await _remaining(docker.daemon)


async def test_entering_removes_the_objects_of_dead_owners(docker_daemon: str, daemon: Daemon):
    dead = Owner(this_process().host, 2**22 + 1, "long ago")
    labels = to_docker(Labels(RUN, "left", dead, time.time() + 3600))
    await daemon.create_container(
        {"Image": "debian:12", "Cmd": ["true"], "Labels": labels}, f"left-{short_id()}"
    )
    await daemon.create_volume(f"left-{short_id()}", labels)
    assert len(await _remaining(daemon)) == 2
    async with DockerBackend(DockerOptions(host=docker_daemon)):
        assert not await _remaining(daemon)


@pytest.mark.parametrize("interrupted", [False, True])
async def test_leaving_removes_the_objects_of_dead_runs_unless_interrupted(
    docker_daemon: str, daemon: Daemon, interrupted: bool
):
    """An interrupted process has little time and removes only its own objects."""
    dead = Owner(this_process().host, 2**22 + 1, "long ago")
    labels = to_docker(Labels(RUN, "left", dead, time.time() + 3600))
    name = f"left-{short_id()}"
    with suppress(TimeoutError):
        async with DockerBackend(DockerOptions(host=docker_daemon)):
            await daemon.create_volume(name, labels)
            if interrupted:
                raise TimeoutError
    assert bool(await _remaining(daemon)) is interrupted
    await daemon.remove_volume(name)


OWNER = f"""
import asyncio, sys, time
from plimsoll.core.ids import Labels
from plimsoll.core.permissions import PUBLIC
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.protocol import ImageSource, SandboxSpec

async def main():
    spec = SandboxSpec(Labels("{RUN}", "t", this_process(), time.time() + 600), network=PUBLIC)
    async with DockerBackend(DockerOptions(host=sys.argv[1])) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        await asyncio.gather(*(docker.create(image, spec) for _ in range(4)))
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def _start_owner(url: str) -> "subprocess.Popen[bytes]":
    """Start a process with four sandboxes and a network."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen([sys.executable, "-c", OWNER, url], stdout=subprocess.PIPE, env=env)
    assert started.stdout is not None
    assert started.stdout.readline() == b"up\n"
    return started


async def test_containers_of_a_killed_process_end_at_once_and_are_reaped(
    docker_daemon: str, daemon: Daemon
):
    owner = await asyncio.to_thread(_start_owner, docker_daemon)
    assert len(await _remaining(daemon)) == 6  # including the network and its holder
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    deadline = time.monotonic() + 30
    while await running_containers(daemon, f"plimsoll.run={RUN}"):
        assert time.monotonic() < deadline, "the containers still run"
        await asyncio.sleep(0.1)
    async with DockerBackend(DockerOptions(host=docker_daemon)):
        assert not await _remaining(daemon)


@pytest.fixture
async def fake_daemon(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """A server that imitates the first responses of a daemon."""
    runners: list[web.AppRunner] = []

    async def serve(version: dict[str, str], info: dict[str, str]) -> str:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(version if request.path.endswith("version") else info)

        app = web.Application()
        app.router.add_get("/{rest:.*}", answer)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        await web.UnixSite(runners[-1], str(tmp_path / "socket")).start()
        return f"unix://{tmp_path}/socket"

    yield serve
    for runner in runners:
        await runner.cleanup()


async def test_folder_times_reveal_nothing_to_the_next_trial(docker: DockerBackend, image: Image):
    look = "stat -c '%n %a %.Y %.X' / /etc /usr/share /usr/lib /var/tmp /dev/shm"
    made = await docker.create(image, spec())
    try:
        await made.baseline()
        assert await made.reset() == ""
        before = (await made.exec(look)).stdout.text
        note = "touch -d @1234567.987654321 /usr/share /usr/lib / /dev/shm; touch /etc/new"
        assert (await made.exec(f"{note}; rm /etc/new; touch /var/tmp/new")).ok
        assert await made.reset() == ""
        assert (await made.exec(look)).stdout.text == before
    finally:
        await made.close()


async def test_a_folder_that_does_not_shrink_is_doubted(docker: DockerBackend, image: Image):
    made = await docker.create(image, spec())
    try:
        await made.baseline()
        many = "cd /opt; for i in $(seq 1000); do : > $i-$PPID-and-a-long-name; done; rm /opt/*"
        assert (await made.exec(many)).ok
        size = int((await made.exec("stat -c %s /opt")).stdout.text)
        assert await made.reset() == ("/opt has grown" if size > 4096 else "")
    finally:
        await made.close()


@pytest.mark.parametrize(
    ("api", "system", "words"),
    [("1.38", "linux", "too old.*1.38.*1.40"), ("1.41", "windows", "windows containers")],
)
async def test_an_unsuitable_daemon_is_refused_with_the_reason(
    fake_daemon: Callable[..., Awaitable[str]], api: str, system: str, words: str
):
    url = await fake_daemon({"Version": "18.09", "ApiVersion": api}, {"OSType": system})
    with pytest.raises(SandboxUnavailable, match=words):
        await DockerBackend(DockerOptions(host=url)).__aenter__()


async def test_a_missing_daemon_is_one_clear_error(tmp_path: Path):
    with pytest.raises(SandboxUnavailable, match="no Docker daemon"):
        await DockerBackend(DockerOptions(host=f"unix://{tmp_path}/none")).__aenter__()
