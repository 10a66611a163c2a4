"""The rules for compose files, applied to the model that Compose makes of them."""

import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from plimsoll.core.errors import BuildError, SandboxUnsupported
from plimsoll.sandboxes.docker.compose import compose_command
from plimsoll.sandboxes.docker.compose.compose_command import find_compose
from plimsoll.sandboxes.docker.compose.launcher import ComposeImage, ComposeLauncher
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint
from plimsoll.sandboxes.docker.images.image_store import ImageStore
from plimsoll.sandboxes.protocol import ImageSource

SLIM = "debian:bookworm-slim"


@pytest.fixture
async def launcher(docker_daemon: str, compose: None) -> AsyncIterator[ComposeLauncher]:
    async with Daemon(find_endpoint(docker_daemon, None, os.environ)) as daemon:
        yield ComposeLauncher(daemon, ImageStore(daemon, os.environ), os.environ)


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str], ImageSource]:
    """Writes a compose file into a task's environment folder."""
    folder = tmp_path / "task" / "environment"
    folder.mkdir(parents=True)
    (tmp_path / "outside.env").write_text("SECRET=1\n")
    (folder / "inside.env").write_text("KNOWN=1\n")

    def write(text: str) -> ImageSource:
        (folder / "docker-compose.yaml").write_text(text)
        return ImageSource(folder, reference=SLIM, compose=folder / "docker-compose.yaml")

    return write


def web(*lines: str) -> str:
    """A file with a service `web`; the first given line is the fourth of the file."""
    return "\n".join(["services:", "  web:", f"    image: {SLIM}", *lines, ""])


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (web("    privileged: true"), 4, "services.web.privileged: a privileged container"),
        (web("    network_mode: host"), 4, "network_mode: host is not the project's own"),
        (web("    network_mode: service:main"), 4, "network_mode"),
        (web("    pid: host"), 4, "pid"),
        (web("    ipc: host"), 4, "ipc"),
        (web("    uts: host"), 4, "uts"),
        (web("    userns_mode: host"), 4, "userns_mode"),
        (web("    cgroup: host"), 4, "cgroup"),
        (web("    cgroup_parent: /x"), 4, "cgroup_parent"),
        (web("    runtime: other"), 4, "runtime"),
        (web("    devices: [/dev/kvm]"), 4, "devices"),
        (web("    cap_add: [SYS_ADMIN]"), 4, "SYS_ADMIN is not allowed in a sandbox"),
        (web("    cap_add: [cap_net_raw]"), 4, "NET_RAW"),
        (web("    cap_add: [ALL]"), 4, "ALL"),
        (web("    security_opt: [seccomp:unconfined]"), 4, "weakens the sandbox"),
        (web("    security_opt: [apparmor=unconfined]"), 4, "weakens the sandbox"),
        (web("    oom_kill_disable: true"), 4, "oom_kill_disable"),
        (web("    volumes: [/var/run/docker.sock:/s]"), 4, "access to the daemon's socket"),
        (web("    volumes: [/run:/run]"), 4, "access to the daemon's socket"),
        (web("    volumes: [/:/host]"), 4, "access to the daemon's socket"),
        (web("    volumes: [/etc:/host]"), 4, "outside of the task's environment folder"),
        (web("    volumes: [../tests:/t]"), 4, "outside of the task's environment folder"),
        (web("    volumes: [./link:/t]"), 4, "outside of the task's environment folder"),
        (web("    env_file: ../../outside.env"), 4, "outside of the task's environment folder"),
        (web("    env_file: [{path: ../../outside.env}]"), 4, "outside of the task's"),
        (web("    env_file: ${HOME}/x"), 4, "variables in its path"),
        (web("    extends: {file: /x, service: y}"), 4, "extends: services of other files"),
        (web('    "extends" : {file: /x, service: y}'), 4, "extends: services of other files"),
        (web('    "ext\\x65nds": {file: /x, service: y}'), 4, "extends: services of other"),
        (web("    ? extends", "    : {file: /x, service: y}"), 4, "extends: services of other"),
        (web("    x-a: &a extends", "    *a : {file: /x, service: y}"), 4, "extends: services of"),
        (f"x-a: &a {{privileged: true}}\n{web('    <<: *a')}", 1, "services.web.privileged"),
        (f"{web()}---\nservices: {{web: {{pid: host}}}}\n", 5, "services.web.pid"),
        (f"x-a: &a {{env_file: /etc/hostname}}\n{web('    <<: *a')}", 1, "env_file: /etc/hostname"),
        (web("    env_file: !!binary L2V0Yy9ob3N0bmFtZQ=="), 4, "env_file: /etc/hostname"),
        (web("    env_file: &f /etc/hostname"), 4, "env_file: /etc/hostname"),
        (web('    "volumes": ["/etc\\x3a/host"]'), 4, "outside of the task's environment folder"),
        (web("    cap_add: &c [!!binary U1lTX0FETUlO]"), 4, "SYS_ADMIN is not allowed"),
        ("include: [/x]\n" + web(), 1, "include: services of other files"),
        (web("    build: ../.."), 4, "outside of the task's environment folder"),
        (web("    build: https://files.example/x.git"), 4, "the context must be a folder"),
        (web("    build: {context: ., dockerfile: ../../x}"), 4, "outside of the task's"),
        (web("    build: {context: ., network: host}"), 4, "services.web.build.network"),
        (web("    build: {context: ., ssh: [default]}"), 4, "services.web.build.ssh"),
        (web("    depends_on: [main]"), 4, "main starts last"),
        (web("    networks: {default: {ipv4_address: 10.0.0.9}}"), 4, "addresses cannot be fixed"),
        (
            web("    deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}"),
            4,
            "GPU",
        ),
        (web("    secrets: [s]", "secrets: {s: {file: ../../outside.env}}"), 5, "secrets.s.file"),
        (web("    secrets: [s]", "secrets: {s: {environment: HOME}}"), 5, "secrets.s"),
        (
            web("    volumes: ['vol:/v']", "volumes: {vol: {external: true}}"),
            5,
            "volumes.vol.external",
        ),
        (
            web(
                "    volumes: ['vol:/v']",
                "volumes:",
                "  vol:",
                "    driver_opts: {type: none, o: bind}",
            ),
            7,
            "volumes.vol.driver_opts: it could mount folders of the host",
        ),
        (
            web("networks: {default: {external: true, name: bridge}}"),
            4,
            "networks.default.external",
        ),
        (web("networks: {default: {driver: host}}"), 4, "networks.default.driver"),
        (
            web("networks: {default: {ipam: {config: [{subnet: 10.9.0.0/24}]}}}"),
            4,
            "networks.default",
        ),
        (web("networks: {default: {driver_opts: {a: b}}}"), 4, "networks.default.driver_opts"),
        (
            web("  main:", "    command: nginx"),
            5,
            "main is the sandbox and runs no command",
        ),
        (web("  main:", "    entrypoint: [/start.sh]"), 5, "main is the sandbox"),
        (web("  main:", "    network_mode: none"), 5, "main is the sandbox itself"),
    ],
)
async def test_keys_that_weaken_the_sandbox_are_refused_with_name_and_line(
    launcher, source, tmp_path, text, line, words
):
    (tmp_path / "task/environment/link").symlink_to("/etc")
    with pytest.raises(SandboxUnsupported) as caught:
        await launcher.build(source(text))
    assert f"docker-compose.yaml:{line}: " in str(caught.value), caught.value
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        web("    cap_add: [CHOWN]", "    cap_drop: [ALL]", "    security_opt: [no-new-privileges]"),
        web("    env_file: inside.env", "    environment: {A: include}", "    # extends: it"),
        web("    command: ['sh', '-c', 'echo \"\\x41\"; sleep 9']"),
        web("  main: {command: sleep infinity, environment: {A: b}}"),
        web("  main: {command: ['sh', '-c', 'sleep infinity'], tty: true}"),
        web("  main: {entrypoint: [tail, -f, /dev/null]}"),
        web("  main: {volumes: ['${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}']}"),
        web("  main: {cpus: '${CPUS}', mem_limit: '${MEMORY}', image: '${MAIN_IMAGE_NAME}'}"),
        web("    deploy: {resources: {limits: {cpus: '0.5', memory: 64M}}}", "    restart: always"),
        web("    configs: [c]", "configs: {c: {content: hello}}"),
    ],
)
async def test_harmless_keys_are_supported(launcher, source, text):
    image = await launcher.build(source(text))
    assert isinstance(image, ComposeImage)
    assert list(image.services) == ["web"]
    assert image.warnings == ()


async def test_keys_that_would_collide_are_ignored_with_a_warning(launcher, source):
    lines: list[bytes] = []
    text = web("    ports: ['80:80']", "    container_name: web")
    image = await launcher.build(source(text), lambda _, data: lines.append(data))
    assert len(image.warnings) == 2
    assert any(":4: services.web.ports: " in warning for warning in image.warnings)
    assert all(warning.encode() in b"".join(lines) for warning in image.warnings)


async def test_a_file_that_compose_cannot_read_is_a_build_error(launcher, source):
    with pytest.raises(BuildError, match=r"docker-compose\.yaml: .*"):
        await launcher.build(source("services: {web: {image: x, nonsense: 1}}"))
    with pytest.raises(BuildError):
        await launcher.build(source("services: ["))


async def test_main_needs_an_image(launcher, source):
    named = source(web())
    bare = ImageSource(named.context, compose=named.compose)
    with pytest.raises(BuildError, match="main has no image"):
        await launcher.build(bare)
    given = source(web("  main:", f"    image: {SLIM}"))
    image = await launcher.build(ImageSource(given.context, compose=given.compose))
    assert image.main.key.startswith("sha256:")


async def test_the_image_key_depends_on_the_services_content(launcher, source, tmp_path):
    text = web("    volumes: ['./data:/data']")
    (tmp_path / "task/environment/data").mkdir()
    first = (await launcher.build(source(text))).key
    assert (await launcher.build(source(text))).key == first
    assert (await launcher.build(source(text + "    environment: {A: b}\n"))).key != first
    source(text)
    (tmp_path / "task/environment/data/new").write_text("new")
    assert (await launcher.build(source(text))).key != first


def test_a_missing_compose_names_the_package_to_install(tmp_path):
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    with pytest.raises(SandboxUnsupported, match="need Docker Compose V2: install") as caught:
        find_compose(env, system_folders=())
    assert "tasks of one container need no Compose" in str(caught.value)


def test_compose_version_1_is_refused(tmp_path):
    old = tmp_path / "docker-compose"
    old.write_text("#!/bin/sh\necho 1.29.2\n")
    old.chmod(0o755)
    with pytest.raises(SandboxUnsupported, match=r"docker-compose is version 1\.29\.2"):
        find_compose({"PATH": str(tmp_path), "HOME": str(tmp_path)}, system_folders=())


@pytest.mark.parametrize("location", ["plugins/cli-plugins", "extra", "system", "bin"])
def test_compose_is_found_where_docker_looks_for_it(tmp_path, location):
    folder = tmp_path / location
    folder.mkdir(parents=True)
    (folder / "docker-compose").write_text("#!/bin/sh\necho v2.40.0-desktop\n")
    (folder / "docker-compose").chmod(0o755)
    config = tmp_path / "plugins"
    config.mkdir(exist_ok=True)
    (config / "config.json").write_text(f'{{"cliPluginsExtraDirs": ["{tmp_path}/extra"]}}')
    env = {"PATH": str(tmp_path / "bin"), "DOCKER_CONFIG": str(config)}
    found = find_compose(env, system_folders=[str(tmp_path / "system")])
    assert found.path == folder / "docker-compose"
    assert found.version == "2.40.0"


def test_a_hanging_compose_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(compose_command, "_VERSION_SECONDS", 0.3)
    slow = tmp_path / "docker-compose"
    slow.write_text("#!/bin/sh\n/bin/sleep 60\n")
    slow.chmod(0o755)
    started = time.monotonic()
    with pytest.raises(SandboxUnsupported, match="docker-compose does not start"):
        find_compose({"PATH": str(tmp_path), "HOME": str(tmp_path)}, system_folders=())
    assert time.monotonic() - started < 20
