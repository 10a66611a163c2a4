"""The OCI runtime of a run's containers is the one that the config names."""

from pathlib import Path

import msgspec
import pytest

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


async def _runtimes(engine: Daemon, run: str) -> list[str]:
    rows = await engine.containers(f"plimsoll.run={run}", all=False)
    raw = [await engine.call("GET", f"/containers/{row.id}/json", "inspect") for row in rows]
    return [msgspec.json.decode(one, type=_Container).host_config.runtime for one in raw]


@pytest.fixture
async def gvisor(docker_engine: str, engine: Daemon) -> DockerOptions:
    known = (await engine.info()).runtimes
    need("gvisor", None if "runsc" in known else f"the daemon at {docker_engine} has no runsc")
    return DockerOptions(host=docker_engine, runtime="runsc")


async def test_sandboxes_run_under_gvisor_where_the_config_says_so(gvisor: DockerOptions):
    async with DockerBackend(gvisor) as docker:
        image = await docker.build(ImageSource(reference="debian:12"))
        made = await docker.create(image, spec())
        said = await made.exec(
            "dmesg; tail -n +3 /proc/net/dev | cut -d: -f1; echo work > /tmp/file; cat /tmp/file"
        )
        assert "Starting gVisor" in said.stdout.text
        assert said.stdout.text.endswith("lo\nwork\n")
        assert (await made.exec("exit 3")).exit_code == 3
        await made.close()


async def test_services_of_a_task_have_the_runtime_of_its_sandbox(
    gvisor: DockerOptions, tmp_path: Path
):
    need("compose", why_no_compose())
    file = tmp_path / "docker-compose.yaml"
    file.write_text(COMPOSE)
    async with DockerBackend(gvisor) as docker:
        source = ImageSource(reference="debian:12", compose=file)
        labels = spec().labels
        made = await docker.create(await docker.build(source), spec())
        assert await _runtimes(docker.engine, labels.run) == ["runsc", "runsc"]
        await made.close()


async def test_a_runtime_that_the_daemon_does_not_know_is_refused_before_any_work(
    docker_engine: str,
):
    options = DockerOptions(host=docker_engine, runtime="no-such-runtime")
    with pytest.raises(SandboxUnavailable, match=r'no runtime "no-such-runtime"; it has .*runc'):
        async with DockerBackend(options):
            pass
