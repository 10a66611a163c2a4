"""The hardening of a sandbox: in the request that creates it, and seen from inside."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parts import spec
from plimsoll.core.errors import SandboxUnsupported
from plimsoll.sandboxes.docker.backend import DockerBackend, DockerOptions
from plimsoll.sandboxes.docker.container_spec import (
    CAPABILITIES,
    INIT,
    ContainerSpec,
    bind_mount,
    limits_config,
    volume_mount,
)
from plimsoll.sandboxes.docker.daemon.responses import DaemonInfo
from plimsoll.sandboxes.local.inside.commands import KEPT_CAPABILITIES
from plimsoll.sandboxes.protocol import Image, ImageSource, Limits, Mount, Sandbox

NUMBERS = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6,
    "SETUID": 7, "SETPCAP": 8, "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18, "AUDIT_WRITE": 29,
    "SETFCAP": 31,
}  # fmt: skip


@pytest.fixture
async def docker(docker_daemon: str) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(DockerOptions(host=docker_daemon)) as started:
        yield started


@pytest.fixture
async def image(docker: DockerBackend) -> Image:
    return await docker.build(ImageSource(reference="debian:12"))


@pytest.fixture
async def sandbox(docker: DockerBackend, image: Image) -> AsyncIterator[Sandbox]:
    made = await docker.create(image, spec(limits=Limits(cpus=0.5, memory_mb=128, pids=50)))
    yield made
    await made.close()


async def _output(sandbox: Sandbox, command: str) -> str:
    done = await sandbox.exec(command)
    assert done.ok, done.complaint()
    return done.stdout.text


def test_capabilities_are_those_of_a_local_sandbox():
    assert {NUMBERS[name] for name in CAPABILITIES} == KEPT_CAPABILITIES


def create_request(cgroup: str, **more: Any) -> dict[str, Any]:
    """The body of the request that creates the container of a plain sandbox."""
    settings: dict[str, Any] = {
        "name": "made",
        "image": "debian:12",
        "labels": spec().labels,
        "limits": limits_config(Limits(), DaemonInfo(cgroup_version=cgroup, cpus=4), storage=False),
        "memory_mb": None,
        "mounts": [bind_mount("/opt/init", INIT)],
        "workdir": "/app",
    }
    body: Any = ContainerSpec(**settings | more).config(DaemonInfo(cgroup_version=cgroup, cpus=4))
    return body


HOST_CONFIG = {
    "CapDrop": ["ALL"],
    "CapAdd": [*NUMBERS],
    "SecurityOpt": ["no-new-privileges"],
    "Privileged": False,
    "IpcMode": "private",
    "NetworkMode": "none",
    "Init": False,
    "OomKillDisable": False,
    "RestartPolicy": {"Name": "no"},
    "AutoRemove": False,
    "PidsLimit": 4096,
    "Dns": [],
    "Mounts": [
        {
            "Type": "bind",
            "Source": "/opt/init",
            "Target": "/.plimsoll/init",
            "ReadOnly": True,
            "BindOptions": {"NonRecursive": True, "Propagation": "rprivate"},
        }
    ],
    "LogConfig": {"Type": "none"},
    "ShmSize": 64 << 20,
}
"""The HostConfig of a plain sandbox. A new field can weaken the sandbox: add it here knowingly."""


@pytest.mark.parametrize(
    ("cgroup", "more"), [("1", {"MemorySwappiness": 0}), ("2", {"CgroupnsMode": "private"})]
)
def test_a_container_is_requested_with_every_hardening_and_nothing_else_of_the_host(
    cgroup: str, more: dict[str, object]
):
    body = create_request(cgroup)
    assert body["HostConfig"] == HOST_CONFIG | more
    assert (body["Entrypoint"], body["Cmd"], body["User"]) == ([INIT], [], "0:0")
    assert body["Healthcheck"] == {"Test": ["NONE"]}
    assert {"ExposedPorts", "Volumes", "Env", "NetworkingConfig"} & body.keys() == set()


def test_only_a_configured_runtime_is_requested():
    assert "Runtime" not in create_request("2")["HostConfig"]
    assert create_request("2", runtime="runsc")["HostConfig"]["Runtime"] == "runsc"


def test_every_mount_is_read_only():
    assert bind_mount("/opt", "/opt")["ReadOnly"] is True
    assert volume_mount("kept", "/opt")["ReadOnly"] is True


def test_requested_limits_reach_the_daemon_without_swap():
    info = DaemonInfo(cgroup_version="2", cpus=4)
    limits = Limits(cpus=1.5, memory_mb=128, storage_mb=100, pids=50)
    assert limits_config(limits, info, storage=True) == {
        "NanoCpus": 1_500_000_000,
        "Memory": 128 << 20,
        "MemorySwap": 128 << 20,
        "StorageOpt": {"size": "100m"},
        "PidsLimit": 50,
    }
    with pytest.raises(SandboxUnsupported, match="no nvidia runtime"):
        limits_config(Limits(gpus=1), info, storage=True)


async def test_no_command_gets_more_capabilities_or_new_privileges(sandbox: Sandbox):
    status = await _output(sandbox, "cat /proc/self/status")
    allowed = sum(1 << number for number in KEPT_CAPABILITIES)
    for name in ("CapEff", "CapPrm", "CapBnd"):
        assert int(re.search(rf"{name}:\s+(\w+)", status)[1], 16) == allowed  # type: ignore[index]
    assert re.search(r"NoNewPrivs:\s+1", status)
    assert re.search(r"Seccomp:\s+2", status)


async def test_pid_1_is_the_init_and_nothing_else_runs(sandbox: Sandbox):
    assert await _output(sandbox, "cat /proc/1/comm") == "init\n"
    seen = await _output(sandbox, "cat /proc/[0-9]*/comm")
    assert "docker-init" not in seen
    assert "tini" not in seen


async def test_the_init_cannot_be_written_or_inspected(sandbox: Sandbox):
    for attack in (
        "echo x > /.plimsoll/init",
        "rm -f /.plimsoll/init",
        "cat /proc/1/environ",
        "readlink /proc/1/fd/0",
        "echo x > /proc/1/fd/1",
        "head -c 1 /proc/1/fd/0",
        "head -c 1 /proc/1/mem",
    ):
        done = await sandbox.exec(attack, timeout=10)
        assert not done.ok, attack
    assert (await sandbox.exec("echo on")).stdout.text == "on\n"


async def test_no_docker_socket_is_inside(sandbox: Sandbox):
    found = await sandbox.exec("find / -xdev -type s; ls /var/run/docker.sock /run/docker.sock")
    assert "docker.sock\n" not in found.stdout.text
    assert "sock" not in await _output(sandbox, "cat /proc/mounts")


async def test_limits_are_applied_and_swap_is_disabled(sandbox: Sandbox):
    limits = await _output(
        sandbox,
        "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes memory/memory.memsw.limit_in_bytes "
        "pids/pids.max cpu/cpu.cfs_quota_us 2>/dev/null || "
        "cat memory.max memory.swap.max pids.max cpu.max",
    )
    first = limits.split()
    assert first[0] == str(128 << 20)
    assert first[1] in (str(128 << 20), "0")  # memory plus swap, or swap alone
    assert first[2:4] == ["50", "50000"]


async def test_processes_are_limited_by_default(docker: DockerBackend, image: Image):
    made = await docker.create(image, spec())
    try:
        shown = "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max"
        assert await _output(made, shown) == "4096\n"
    finally:
        await made.close()


async def test_more_cpus_than_available_is_a_warning(docker: DockerBackend, image: Image):
    made = await docker.create(image, spec(limits=Limits(cpus=10_000)))
    await made.close()
    assert any("10000 CPUs" in warning for warning in docker.warnings)


async def test_a_storage_limit_is_enforced_or_a_warning(docker: DockerBackend, image: Image):
    made = await docker.create(image, spec(limits=Limits(storage_mb=100)))
    try:
        wrote = await made.exec("head -c 200M /dev/zero > /big")
    finally:
        await made.close()
    assert wrote.ok == any("storage_mb" in warning for warning in docker.warnings)


async def test_an_impossible_limit_is_refused(docker: DockerBackend, image: Image):
    with pytest.raises(SandboxUnsupported, match="memory"):
        await docker.create(image, spec(limits=Limits(memory_mb=1)))


async def test_mounts_are_read_only_and_yield_to_the_images_files(
    docker: DockerBackend, image: Image, tmp_path: Path
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("of the host")
    (tmp_path / "alone").write_text("a file")
    requested = spec(
        mounts=(
            Mount(tmp_path / "folder", "/opt/mounted"),
            Mount(tmp_path / "alone", "/opt/alone"),
            Mount(tmp_path / "folder", "/usr/bin", unless_there=True),
            Mount(tmp_path / "alone", "/etc/passwd", unless_there=True),
            Mount(tmp_path / "folder", "/srv", unless_there=True),
            Mount(tmp_path / "folder", "/new/place", unless_there=True),
        )
    )
    made = await docker.create(image, requested)
    try:
        files = "/opt/mounted/file /opt/alone /srv/file /new/place/file"
        assert await _output(made, f"cat {files}") == "of the hosta fileof the hostof the host"
        assert await _output(made, "ls /usr/bin/python3; grep -c root /etc/passwd")
        for path in ("/opt/mounted/file", "/opt/mounted/new", "/opt/alone", "/srv/x"):
            done = await made.exec(f"echo x > {path}")
            assert not done.ok
            assert "Read-only" in done.stderr.text
        assert not (await made.exec("mount -o remount,rw /opt/mounted")).ok
    finally:
        await made.close()
    assert (tmp_path / "folder/file").read_text() == "of the host"


async def test_a_missing_working_folder_is_created(docker: DockerBackend, image: Image):
    made = await docker.create(image, spec(workdir="/not/there/yet"))
    try:
        assert await _output(made, "pwd; stat -c %U .") == "/not/there/yet\nroot\n"
    finally:
        await made.close()


async def test_shared_memory_has_the_size_of_a_local_sandbox(sandbox: Sandbox):
    assert await _output(sandbox, "df -m --output=size /dev/shm | tail -1 | tr -d ' '") == "64\n"
