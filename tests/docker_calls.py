"""Calls of the Docker API that only tests make."""

import msgspec

from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.responses import ContainerSummary

__all__ = ["exit_code", "kill", "running_containers"]


class _Waited(msgspec.Struct, rename="pascal"):
    status_code: int


async def kill(daemon: Daemon, container: str, signal: str = "KILL") -> None:
    """Send a signal to the pid 1 of a container."""
    path = f"/containers/{container}/kill"
    await daemon.call("POST", path, "kill a container", params={"signal": signal})


async def exit_code(daemon: Daemon, container: str, seconds: float) -> int:
    """Wait until a container has exited. Returns its exit code."""
    path = f"/containers/{container}/wait"
    raw = await daemon.call("POST", path, "wait for a container", seconds=seconds)
    return msgspec.json.decode(raw, type=_Waited).status_code


async def running_containers(daemon: Daemon, *labels: str) -> list[ContainerSummary]:
    """The running containers with all these labels."""
    return [row for row in await daemon.containers(*labels) if row.state == "running"]
