"""What the config says about the Docker backend."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint, find_endpoint

__all__ = ["DockerOptions"]


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """Which engine is used, and how much of what is built there is kept."""

    host: str | None = None
    """The engine's address, as in DOCKER_HOST."""
    context: str | None = None
    """A context of the docker command."""
    certificates: Path | None = None
    """A folder with ca.pem, cert.pem and key.pem for an engine behind TLS."""
    allow_plain: tuple[str, ...] = ()
    """Hosts whose engines may be used without TLS."""
    dns: tuple[str, ...] = ()
    """Addresses of name servers for sandboxes that have a network; the engine's own otherwise."""
    keep_images_gb: float = 50.0
    """Images of ours beyond this are collected, those used longest ago first."""
    keep_images_days: float = 14.0
    """Images of ours that nobody used for this long are collected."""
    wait_seconds: float = 60.0
    """How long a start waits for a daemon that is away, as while it restarts."""
    runtime: str | None = None
    """The OCI runtime of sandboxes, by its name on the daemon; the daemon's default otherwise."""
    home: Path | None = None
    """Where files that the engine is to see are kept; the local backend's folder by default."""

    def endpoint(self, env: Mapping[str, str]) -> Endpoint:
        """The engine that is meant, by these options and the environment."""
        return find_endpoint(
            self.host,
            self.context,
            env,
            certificates=self.certificates,
            allow_plain=self.allow_plain,
        )
