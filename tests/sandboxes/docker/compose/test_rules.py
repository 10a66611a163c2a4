"""The rules for compose files, applied to the model that Compose makes of them."""

import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import yaml

from plimsoll.core.errors import BuildError, SandboxUnsupported
from plimsoll.sandboxes.docker.compose import compose_command
from plimsoll.sandboxes.docker.compose.compose_command import find_compose
from plimsoll.sandboxes.docker.compose.compose_file import ComposeFile
from plimsoll.sandboxes.docker.compose.launcher import ComposeImage, ComposeLauncher
from plimsoll.sandboxes.docker.compose.rules import HOST_LOGS, check_model
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


def check(folder: Path, text: str) -> list[str]:
    """Check a file in the long form, which Compose's model of it has too. Needs no Compose."""
    path = folder / "docker-compose.yaml"
    path.write_text(text)
    return check_model(ComposeFile.read(path), yaml.safe_load(text))


def of_web(text: str) -> str:
    """A file with a service `web` that has these settings."""
    return f"services:\n  web:\n    image: x\n    {text}\n"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("privileged: true", "privileged: a privileged container is root on the host"),
        ("devices: [{source: /dev/kvm}]", "devices: devices of the host"),
        ("device_cgroup_rules: ['c 1:3 mr']", "device_cgroup_rules: devices of the host"),
        ("gpus: [{count: 1}]", "gpus: GPUs are requested in task.toml"),
        ("cgroup_parent: /x", "cgroup_parent: a task must not choose"),
        ("oom_kill_disable: true", "oom_kill_disable: a service that the kernel cannot kill"),
        ("pid: host", "pid: it would see the processes of the host"),
        ("uts: host", "uts: it would share the host's UTS namespace"),
        ("userns_mode: host", "userns_mode: it would leave the daemon's user namespace"),
        ("cgroup: host", "cgroup: it would see the host's control groups"),
        ("runtime: other", "runtime: it is set for all containers of a run"),
        ("volumes_from: [other]", "volumes_from: name the volumes instead"),
        ("external_links: [other]", "external_links: containers outside of the task"),
        ("use_api_socket: true", "use_api_socket: access to the daemon's socket"),
        ("provider: {type: x}", "provider: it would run a command on the host"),
        ("credential_spec: {file: x}", "credential_spec: it would read the host's credentials"),
        ("nonsense: 1", "nonsense: unknown key"),
        ("network_mode: host", "network_mode: host is not the project's own network"),
        ("network_mode: 'container:x'", "network_mode: container:x is not"),
        ("network_mode: 'service:main'", "network_mode: service:main is not"),
        ("ipc: host", "ipc: host is not the service's own memory"),
        ("ipc: 'service:main'", "ipc: service:main is not"),
        ("cap_add: [SYS_ADMIN]", "cap_add: SYS_ADMIN is not allowed"),
        ("cap_add: [cap_net_raw]", "cap_add: NET_RAW is not allowed"),
        ("cap_add: [ALL]", "cap_add: ALL is not allowed"),
        ("security_opt: ['seccomp:unconfined']", "security_opt: seccomp:unconfined weakens"),
        ("security_opt: ['no-new-privileges:false']", "security_opt: no-new-privileges:false"),
        ("post_start: [{command: x, privileged: true}]", "a privileged hook is root on the host"),
        ("pre_stop: [{command: x, privileged: true}]", "a privileged hook is root on the host"),
        ("deploy: {resources: {reservations: {devices: [{count: 1}]}}}", "GPUs are requested"),
        ("deploy: {resources: {reservations: {generic_resources: [{}]}}}", "GPUs are requested"),
        ("depends_on: {main: {condition: service_started}}", "depends_on: main starts last"),
        ("networks: {default: {ipv4_address: 10.0.0.9}}", "addresses cannot be fixed"),
        ("build: {context: /}", "outside of the task's environment folder"),
        ("build: {context: ., dockerfile: ../../x}", "outside of the task's environment folder"),
        ("build: {context: 'https://files.example/x.git'}", "context must be a folder of the task"),
        ("build: {context: 'git@files.example:x'}", "context must be a folder of the task"),
        ("build: {context: ., network: host}", "build.network: not supported"),
        ("build: {context: ., ssh: [default]}", "build.ssh: not supported"),
        ("build: {context: ., privileged: true}", "build.privileged: not supported"),
        ("build: {context: ., additional_contexts: {a: /}}", "build.additional_contexts: not"),
        ("volumes: [{type: bind, source: /etc, target: /t}]", "outside of the task's"),
        ("volumes: [{type: bind, source: ../x, target: /t}]", "outside of the task's"),
        ("volumes: [{type: bind, source: ./link, target: /t}]", "outside of the task's"),
        ("volumes: [{type: bind, source: /, target: /t}]", "access to the daemon's socket"),
        ("volumes: [{type: bind, source: /run, target: /t}]", "access to the daemon's socket"),
        (
            "volumes: [{type: bind, source: /var/run/docker.sock, target: /t}]",
            "access to the daemon's socket",
        ),
        (
            "volumes: [{type: bind, source: ., target: /t, bind: {propagation: shared}}]",
            "volumes.propagation: mounts are not shared with the host",
        ),
        ("volumes: [{type: npipe, source: x, target: /t}]", "mounts of type npipe"),
        (
            "volumes: [{type: volume, source: v, target: /t, volume: {subpath: x}}]",
            "volumes.subpath: not supported",
        ),
    ],
)
def test_a_setting_that_weakens_the_sandbox_is_refused_without_asking_compose(
    tmp_path: Path, setting: str, words: str
):
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(SandboxUnsupported) as caught:
        check(tmp_path, of_web(setting))
    key = setting.partition(":")[0]
    assert f"docker-compose.yaml:4: services.web.{key}" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("networks: {n: {external: true}}", "networks.n.external: "),
        ("networks: {n: {driver: host}}", "networks.n.driver: host is not an isolated network"),
        ("networks: {n: {ipam: {config: [{subnet: 10.9.0.0/24}]}}}", "addresses cannot be fixed"),
        ("networks: {n: {driver_opts: {a: b}}}", "networks.n.driver_opts: "),
        ("volumes: {v: {external: true}}", "volumes.v.external: "),
        ("volumes: {v: {driver: nfs}}", "volumes.v.driver: "),
        ("volumes: {v: {driver_opts: {o: bind}}}", "it could mount folders of the host"),
        ("secrets: {s: {file: ../x}}", "outside of the task's environment folder"),
        ("secrets: {s: {environment: HOME}}", "only a file of the task or content"),
        ("configs: {c: {file: /etc/passwd}}", "outside of the task's environment folder"),
        ("configs: {c: {external: true}}", "only a file of the task or content"),
        ("nonsense: {a: {b: c}}", "nonsense: unknown key"),
        ("services: {main: {image: x, command: nginx}}", "main is the sandbox and runs no command"),
        ("services: {main: {image: x, entrypoint: [/start.sh]}}", "main is the sandbox and runs"),
        ("services: {main: {image: x, network_mode: none}}", "main is the sandbox itself"),
        ("services: {main: {image: x, privileged: true}}", "is root on the host"),
    ],
)
def test_a_part_of_the_file_that_reaches_outside_is_refused_without_asking_compose(
    tmp_path: Path, text: str, words: str
):
    with pytest.raises(SandboxUnsupported) as caught:
        check(tmp_path, text)
    assert "docker-compose.yaml:1: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    [
        "cap_add: [CHOWN]",
        "cap_drop: [ALL]",
        "security_opt: ['no-new-privileges:true']",
        "privileged: false",
        "network_mode: none",
        "network_mode: 'service:other'",
        "ipc: private",
        "x-note: {privileged: true}",
        "post_start: [{command: x}]",
        "build: {context: ., dockerfile: Dockerfile, args: {A: b}, target: t}",
        "volumes: [{type: bind, source: ./inside, target: /t}, {type: tmpfs, target: /m}]",
        f"volumes: [{{type: bind, source: {HOST_LOGS}/verifier, target: /logs/verifier}}]",
        "networks: {default: {aliases: [a], priority: 1}}",
    ],
)
def test_a_harmless_setting_is_accepted_without_a_warning(tmp_path: Path, setting: str):
    assert check(tmp_path, of_web(setting)) == []


def test_the_commands_of_main_that_only_wait_are_accepted(tmp_path: Path):
    for command in ("sleep infinity", "[tail, -f, /dev/null]", "[sh, -c, sleep infinity]", "bash"):
        assert check(tmp_path, f"services: {{main: {{image: x, command: {command}}}}}\n") == []


def test_settings_that_would_collide_between_trials_are_a_warning(tmp_path: Path):
    (warning,) = check(tmp_path, of_web("ports: [{target: 80}]"))
    assert "docker-compose.yaml:4: services.web.ports: trials run in parallel" in warning
    (warning,) = check(tmp_path, of_web("container_name: web"))
    assert "the name is not used" in warning


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
