"""The OCI runtime of a run's containers is the configured one."""

from pathlib import Path

import msgspec
import pytest

from docker_calls import running_containers
from parts import need, spec, why_no_compose
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.protocol import ImageSource

COMPOSE = """
services:
  main: {}
  web: {image: "debian:12", command: ["sleep", "600"]}
"""


class _HostConfig(msgspec.Struct, rename="pascal"):
    runtime: str


class _Container(msgspec.Struct, rename="pascal"):
    host_config: _HostConfig


async def _runtimes(daemon: Daemon, run: str) -> list[str]:
    rows = await running_containers(daemon, f"plimsoll.run={run}")
    raw = [await daemon.call("GET", f"/containers/{row.id}/json", "inspect") for row in rows]
    return [msgspec.json.decode(one, type=_Container).host_config.runtime for one in raw]


@pytest.fixture
async def gvisor(docker_daemon: str, daemon: Daemon) -> DockerOptions:
    runtimes = (await daemon.info()).runtimes
    need("gvisor", None if "runsc" in runtimes else f"the daemon at {docker_daemon} has no runsc")
    return DockerOptions(host=docker_daemon, runtime="runsc")


async def test_sandboxes_run_under_gvisor_if_configured(gvisor: DockerOptions):
    async with DockerBackend(gvisor) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        done = await made.exec(
            "dmesg; tail -n +3 /proc/net/dev | cut -d: -f1; echo work > /tmp/file; cat /tmp/file"
        )
        assert "Starting gVisor" in done.stdout.text
        assert done.stdout.text.endswith("lo\nwork\n")
        assert (await made.exec("exit 3")).exit_code == 3
        await made.close()


async def test_services_use_the_runtime_of_the_sandbox(gvisor: DockerOptions, tmp_path: Path):
    need("compose", why_no_compose())
    file = tmp_path / "docker-compose.yaml"
    file.write_text(COMPOSE)
    async with DockerBackend(gvisor) as docker:
        source = ImageSource(reference="debian:12", compose=file)
        labels = spec().labels
        made = await docker.create(await docker.build(source), spec())
        assert await _runtimes(docker.daemon, labels.run) == ["runsc", "runsc"]
        await made.close()


async def test_an_unknown_runtime_is_refused_at_the_start(
    docker_daemon: str,
):
    options = DockerOptions(host=docker_daemon, runtime="no-such-runtime")
    with pytest.raises(SandboxUnavailable, match=r'no runtime "no-such-runtime"; it has .*runc'):
        async with DockerBackend(options):
            pass
