"""Tables about sandboxes: [local], [docker], [pool] and [assets].

[local]
roots = { "python:3.12-slim" = "/srv/rootfs/py312" }
host_paths = ["/opt"]
home = "~/.cache/plimsoll"
allow_system_calls = ["user-namespaces"]

[docker]
host = "tcp://build-7.example.org:2376"
certificates = "~/.docker/build-7"

[pool]
reuse = "reset"

[assets]
folder = "/mnt/shared/assets"
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr

from plimsoll.config.table import Table
from plimsoll.core.permissions import SystemCalls

__all__ = ["AssetsConfig", "DockerConfig", "LocalConfig", "PoolConfig"]


class LocalConfig(Table):
    """Options of the local backend. Keys that are not set use the backend's choice."""

    roots: dict[str, StrictStr] = Field(default_factory=dict)
    """Folders with root file systems, by the `FROM` name that they stand for."""
    host_paths: tuple[StrictStr, ...] | None = None
    """Paths of the host that a sandbox on the host's own system sees, besides /usr and the like."""
    home: StrictStr | None = None
    """The folder of layers and sandboxes."""
    allow_system_calls: tuple[SystemCalls, ...] = ()
    """System calls that are usually denied and that a task gets if its `metadata.system_calls`
    asks for them."""
    upper: Literal["auto", "tmpfs", "disk"] = "auto"
    """Storage of the files that sandboxes write: in memory, or on the disk of `home`."""
    upper_mb: StrictInt = Field(default=256, ge=16)
    """The memory limit of the files of one sandbox, in MiB."""


class DockerConfig(Table):
    """The Docker daemon that runs sandboxes. Without keys: DOCKER_HOST, contexts, sockets."""

    host: StrictStr | None = None
    """`unix://`, `tcp://` with certificates, or `ssh://`."""
    context: StrictStr | None = None
    """The name of a Docker context."""
    certificates: StrictStr | None = None
    """The folder with ca.pem, cert.pem and key.pem for `host`."""
    allow_plain: tuple[StrictStr, ...] = ()
    """Hosts that may be reached without TLS. Everyone who can reach such a daemon is root on its
    host."""
    dns: tuple[StrictStr, ...] = ()
    """Name servers for sandboxes with a network; by default, those of the daemon."""
    keep_images_gb: StrictFloat = Field(default=50.0, gt=0)
    """Built images above this size are removed, the least recently used first."""
    keep_images_days: StrictFloat = Field(default=14.0, gt=0)
    """Built images that were not used for longer are removed."""
    wait_seconds: StrictFloat = Field(default=60.0, ge=0)
    """The time limit for starts that wait for an unreachable daemon, such as one that restarts."""
    runtime: StrictStr | None = None
    """The OCI runtime of sandboxes, such as "runsc"; by default, that of the daemon."""


class PoolConfig(Table):
    """The use of sandboxes. Keys that are not set use the backend's defaults."""

    reuse: Literal["none", "fresh", "reset"] | None = None
    """`none`: started on demand; `fresh`: started ahead and used once; `reset`: reset and used
    again."""
    uses: StrictInt = Field(default=50, ge=1)
    """A sandbox is retired after this many uses."""
    ahead: StrictInt | None = Field(default=None, ge=0)
    """The limit of idle sandboxes; by default, the number of concurrent trials."""


class AssetsConfig(Table):
    """Assets for sandboxes without a network."""

    folder: StrictStr | None = None
    """The folder that `plimsoll stage` filled."""

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else Path(self.folder)
