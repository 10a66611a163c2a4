"""The options of the Docker backend."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint, find_endpoint

__all__ = ["DockerOptions"]


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """The daemon to use, and the limits of its image cache."""

    host: str | None = None
    """The daemon's address, as in DOCKER_HOST."""
    context: str | None = None
    """A context of the docker command."""
    certificates: Path | None = None
    """A folder with ca.pem, cert.pem and key.pem for a daemon behind TLS."""
    allow_plain: tuple[str, ...] = ()
    """Hosts whose daemons may be used without TLS."""
    dns: tuple[str, ...] = ()
    """Name servers of sandboxes with a network, by address; default: those of the daemon."""
    keep_images_gb: float = 50.0
    """Plimsoll's images beyond this size are pruned, the least recently used first."""
    keep_images_days: float = 14.0
    """Plimsoll's images that were not used for this long are pruned."""
    wait_seconds: float = 60.0
    """The time that a start waits for an unreachable daemon, for example while it restarts."""
    runtime: str | None = None
    """The OCI runtime of sandboxes by its name on the daemon; default: the daemon's."""
    home: Path | None = None
    """The folder for files that the daemon mounts; default: the local backend's home."""

    def endpoint(self, env: Mapping[str, str]) -> Endpoint:
        """The address of the daemon, by these options and the environment."""
        return find_endpoint(
            self.host,
            self.context,
            env,
            certificates=self.certificates,
            allow_plain=self.allow_plain,
        )
