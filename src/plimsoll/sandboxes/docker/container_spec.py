"""What a sandbox's container is made of: its limits, its walls and its mounts.

Invariants: no capability beyond those of a local sandbox, no way to new privileges, no
namespace of the host, no socket of the engine, nothing of the host that can be written.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plimsoll.core.errors import SandboxError, SandboxUnavailable, SandboxUnsupported
from plimsoll.core.ids import Labels
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.daemon.responses import DaemonInfo
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.protocol import Limits

__all__ = [
    "CAPABILITIES",
    "INIT",
    "MAX_PROCESSES",
    "NO_NETWORK_MODE",
    "ContainerSpec",
    "bind_mount",
    "hardening",
    "limits_config",
    "start_error",
    "volume_mount",
]

INIT = "/.plimsoll/init"
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
)  # fmt: skip
"""Those of the local backend's sandboxes: what a container usually may do, less device nodes
and raw packets."""
MAX_PROCESSES = 4096
"""Without a limit of its own a sandbox could use up the host's process table."""
NO_NETWORK_MODE = "none"
_SHM_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container before it is made."""

    name: str
    image: str
    labels: Labels
    limits: Mapping[str, object]
    """As the engine takes them; see `limits_config`."""
    memory_mb: int | None
    mounts: Sequence[Mapping[str, object]]
    workdir: str
    network: str = NO_NETWORK_MODE
    dns: Sequence[str] = ()
    """Who is asked for names, by way of the container's own network; see `networks`."""
    runtime: str | None = None
    """The OCI runtime; the daemon's default otherwise."""

    def config(self, info: DaemonInfo) -> dict[str, object]:
        """The body of the engine's create call."""
        return {
            "Image": self.image,
            "Hostname": self.name,
            "Entrypoint": [INIT],
            "Cmd": [],
            "User": "0:0",
            # The engine makes it where the image does not have it.
            "WorkingDir": self.workdir,
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": to_docker(self.labels),
            "HostConfig": {
                **hardening(info),
                **self.limits,
                "NetworkMode": self.network,
                "Dns": list(self.dns),
                "Mounts": [dict(mount) for mount in self.mounts],
                "LogConfig": {"Type": "none"},
                "ShmSize": _SHM_BYTES,
                **({"Runtime": self.runtime} if self.runtime else {}),
            },
        }


def hardening(info: DaemonInfo) -> dict[str, object]:
    """The walls of every sandbox, as the engine's HostConfig takes them."""
    walls: dict[str, object] = {
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "IpcMode": "private",
        "Init": False,
        "OomKillDisable": False,
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
    }
    if info.cgroup_version == "2":
        walls["CgroupnsMode"] = "private"
    return walls


def limits_config(limits: Limits, info: DaemonInfo, *, storage: bool) -> dict[str, object]:
    """Limits as the engine's HostConfig takes them; storage only where its driver can."""
    config: dict[str, object] = {"PidsLimit": limits.pids or MAX_PROCESSES}
    if info.cgroup_version == "1":
        config["MemorySwappiness"] = 0
    if limits.cpus is not None and limits.cpus < info.cpus:
        config["NanoCpus"] = round(limits.cpus * 1e9)
    if limits.memory_mb is not None:
        # As much memory and swap together as memory alone: there is no swap.
        config["Memory"] = config["MemorySwap"] = limits.memory_mb << 20
    if limits.storage_mb is not None and storage:
        config["StorageOpt"] = {"size": f"{limits.storage_mb}m"}
    if limits.gpus:
        if "nvidia" not in info.runtimes:
            raise SandboxUnsupported(
                f"the task wants {limits.gpus} GPU(s), and the Docker engine has no nvidia "
                "runtime: install the NVIDIA container toolkit on its host, or use another engine"
            )
        request = {"Driver": "nvidia", "Count": limits.gpus, "Capabilities": [["gpu"]]}
        config["DeviceRequests"] = [request]
    return config


def bind_mount(source: str, target: str) -> dict[str, object]:
    """A file or folder of the engine's host, read-only.

    Without what is mounted below it: the engine makes only the topmost mount read-only.
    """
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": True,
        "BindOptions": {"NonRecursive": True, "Propagation": "rprivate"},
    }


def volume_mount(name: str, target: str) -> dict[str, object]:
    """A named volume, read-only."""
    return {
        "Type": "volume",
        "Source": name,
        "Target": target,
        "ReadOnly": True,
        "VolumeOptions": {"NoCopy": True},
    }


def start_error(error: DaemonError, image: str, where: str) -> SandboxError:
    """Why a container did not start, in words for a person."""
    said = _runtime_message(error.said)
    if error.status == 404 and "no such image" in said.lower():
        return SandboxUnavailable(
            f"the image {image} is no longer on the Docker engine at {where}: it was removed "
            "after it was built; run again to build it"
        )
    if error.status == 400:
        return SandboxUnsupported(f"the Docker engine at {where} does not take this: {said}")
    return SandboxUnavailable(f"the Docker engine at {where} cannot start a sandbox: {said}")


def _runtime_message(said: str) -> str:
    """A runtime's message without the path that it took through the runtime's own code."""
    words = re.sub(r"\b\w+\.go:\d+: ", "", said)
    for layer in (
        r".*OCI runtime (?:create|start) failed: ",
        r"runc (?:create|start) failed: ",
        r"(?:unable to start container process|starting container process caused)[:,]? ",
        r"(?:error during container init|container init caused)[:,]? ",
    ):
        words = re.sub(layer, "", words)
    return words.removesuffix(": unknown").strip() or said
