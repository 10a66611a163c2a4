"""The configuration of a sandbox's container: limits, hardening and mounts.

Invariants: no capability beyond those of a local sandbox, no new privileges, no namespace of the
host, no socket of the daemon, no writable mount of the host.
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
    "limits_config",
    "start_error",
    "volume_mount",
]

INIT = "/.plimsoll/init"
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
)  # fmt: skip
"""The capabilities of the local backend's sandboxes: Docker's default without device nodes and raw
packets."""
MAX_PROCESSES = 4096
"""The process limit of a sandbox that sets none; it protects the host's process table."""
NO_NETWORK_MODE = "none"
_SHM_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The specification of a container."""

    name: str
    image: str
    labels: Labels
    limits: Mapping[str, object]
    """In the format of HostConfig; see `limits_config`."""
    memory_mb: int | None
    mounts: Sequence[Mapping[str, object]]
    workdir: str
    network: str = NO_NETWORK_MODE
    dns: Sequence[str] = ()
    """Name servers, reached through the container's own network; see `run_networks`."""
    runtime: str | None = None
    """The OCI runtime; default: the daemon's."""

    def config(self, info: DaemonInfo) -> dict[str, object]:
        """The body of the create request."""
        return {
            "Image": self.image,
            "Hostname": self.name,
            "Entrypoint": [INIT],
            "Cmd": [],
            "User": "0:0",
            # Created by the daemon if the image does not have it.
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
    """The hardening of every sandbox, as fields of HostConfig."""
    config: dict[str, object] = {
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
        config["CgroupnsMode"] = "private"
    return config


def limits_config(limits: Limits, info: DaemonInfo, *, storage: bool) -> dict[str, object]:
    """Limits as fields of HostConfig; the storage limit only if the driver supports it."""
    config: dict[str, object] = {"PidsLimit": limits.pids or MAX_PROCESSES}
    if info.cgroup_version == "1":
        config["MemorySwappiness"] = 0
    if limits.cpus is not None and limits.cpus < info.cpus:
        config["NanoCpus"] = round(limits.cpus * 1e9)
    if limits.memory_mb is not None:
        # MemorySwap is memory plus swap, so this disables swap.
        config["Memory"] = config["MemorySwap"] = limits.memory_mb << 20
    if limits.storage_mb is not None and storage:
        config["StorageOpt"] = {"size": f"{limits.storage_mb}m"}
    if limits.gpus:
        if "nvidia" not in info.runtimes:
            raise SandboxUnsupported(
                f"the task needs {limits.gpus} GPU(s), and the Docker daemon has no nvidia "
                "runtime: install the NVIDIA container toolkit on its host, or use another daemon"
            )
        request = {"Driver": "nvidia", "Count": limits.gpus, "Capabilities": [["gpu"]]}
        config["DeviceRequests"] = [request]
    return config


def bind_mount(source: str, target: str) -> dict[str, object]:
    """A read-only bind mount of a file or folder of the daemon's host.

    It is not recursive: the daemon makes only the topmost mount read-only.
    """
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": True,
        "BindOptions": {"NonRecursive": True, "Propagation": "rprivate"},
    }


def volume_mount(name: str, target: str) -> dict[str, object]:
    """A read-only mount of a named volume."""
    return {
        "Type": "volume",
        "Source": name,
        "Target": target,
        "ReadOnly": True,
        "VolumeOptions": {"NoCopy": True},
    }


def start_error(error: DaemonError, image: str, endpoint: str) -> SandboxError:
    """The error for a container that did not start."""
    message = _runtime_message(error.reason)
    if error.status == 404 and "no such image" in message.lower():
        return SandboxUnavailable(
            f"the image {image} was removed from the Docker daemon at {endpoint} after it was "
            "built; run again to build it"
        )
    if error.status == 400:
        return SandboxUnsupported(
            f"the Docker daemon at {endpoint} rejected the container: {message}"
        )
    return SandboxUnavailable(f"the Docker daemon at {endpoint} cannot start a sandbox: {message}")


def _runtime_message(message: str) -> str:
    """A runtime's message without the prefixes that name its internal layers."""
    text = re.sub(r"\b\w+\.go:\d+: ", "", message)
    for layer in (
        r".*OCI runtime (?:create|start) failed: ",
        r"runc (?:create|start) failed: ",
        r"(?:unable to start container process|starting container process caused)[:,]? ",
        r"(?:error during container init|container init caused)[:,]? ",
    ):
        text = re.sub(layer, "", text)
    return text.removesuffix(": unknown").strip() or message
