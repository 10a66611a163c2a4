"""Responses of the Docker API, with the fields that Plimsoll reads."""

from typing import Any

import msgspec

__all__ = [
    "ContainerInspect",
    "ContainerSummary",
    "Created",
    "DaemonInfo",
    "DaemonVersion",
    "ImageInspect",
    "ImageSummary",
    "NetworkInspect",
    "NetworkSummary",
    "PathStat",
    "Volume",
    "VolumeList",
]

Labels = dict[str, str]


class _Response(msgspec.Struct, frozen=True, rename="pascal"):
    """Field names are in pascal case on the wire; unlisted fields are ignored."""


class DaemonVersion(_Response, frozen=True):
    """The daemon's version."""

    version: str = ""
    api: str = msgspec.field(default="1.24", name="ApiVersion")
    os: str = ""
    arch: str = ""


class DaemonInfo(_Response, frozen=True):
    """The daemon's host and its features."""

    architecture: str = ""
    os_type: str = msgspec.field(default="", name="OSType")
    driver: str = ""
    cgroup_version: str = "1"
    runtimes: dict[str, Any] = {}
    security_options: list[str] | None = None
    cpus: int = msgspec.field(default=0, name="NCPU")
    memory_limit: bool = True
    swap_limit: bool = True
    pids_limit: bool = True


class Created(_Response, frozen=True):
    """The id of a created object."""

    id: str


class ContainerHealth(_Response, frozen=True):
    """The result of a container's healthcheck."""

    status: str = ""


class ContainerState(_Response, frozen=True):
    """The state of a container, and how it exited."""

    status: str = ""
    health: ContainerHealth | None = None
    running: bool = False
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    exit_code: int = 0
    error: str = ""
    finished_at: str = ""


class NetworkEndpoint(_Response, frozen=True):
    """A container's endpoint in a network."""

    network: str = msgspec.field(default="", name="NetworkID")


class NetworkSettings(_Response, frozen=True):
    networks: dict[str, NetworkEndpoint] | None = None


class MountPoint(_Response, frozen=True):
    type: str = ""
    name: str = ""


class ContainerConfig(_Response, frozen=True):
    labels: Labels | None = None


class ContainerInspect(_Response, frozen=True):
    """One container, inspected."""

    id: str
    state: ContainerState = ContainerState()
    config: ContainerConfig = ContainerConfig()
    mounts: list[MountPoint] | None = None


class ContainerSummary(_Response, frozen=True):
    """One container of a list."""

    id: str
    names: list[str] = []
    image_id: str = msgspec.field(default="", name="ImageID")
    command: str = ""
    state: str = ""
    created: float = 0
    labels: Labels | None = None
    network_settings: NetworkSettings = NetworkSettings()
    mounts: list[MountPoint] = []


class ImageConfig(_Response, frozen=True):
    env: list[str] | None = None
    working_dir: str = ""
    user: str = ""
    labels: Labels | None = None


class ImageMetadata(_Response, frozen=True):
    last_tag_time: str = ""


class ImageInspect(_Response, frozen=True):
    """One image, inspected."""

    id: str
    repo_tags: list[str] | None = None
    config: ImageConfig | None = None
    metadata: ImageMetadata = ImageMetadata()

    @property
    def env(self) -> dict[str, str]:
        pairs = (self.config.env if self.config else None) or []
        return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}

    @property
    def labels(self) -> Labels:
        return (self.config.labels if self.config else None) or {}


class ImageSummary(_Response, frozen=True):
    """One image of a list."""

    id: str
    parent_id: str = ""
    repo_tags: list[str] | None = None
    created: float = 0
    size: int = 0
    labels: Labels | None = None


class NetworkSummary(_Response, frozen=True):
    """One network of a list."""

    id: str
    name: str = ""
    created: str = ""
    internal: bool = False
    labels: Labels | None = None


class NetworkMember(_Response, frozen=True):
    name: str = ""


class NetworkInspect(NetworkSummary, frozen=True):
    """One network, with its containers by id."""

    containers: dict[str, NetworkMember] | None = None


class Volume(_Response, frozen=True):
    """One volume."""

    name: str
    created_at: str = ""
    labels: Labels | None = None


class VolumeList(_Response, frozen=True):
    volumes: list[Volume] | None = None


class PathStat(msgspec.Struct, frozen=True):
    """The file or folder at a path in a container."""

    mode: int
    """Go's file mode: the permission bits, and Go's own type bits above them."""
    link_target: str = msgspec.field(default="", name="linkTarget")

    @property
    def is_folder(self) -> bool:
        return bool(self.mode & 1 << 31)

    @property
    def is_link(self) -> bool:
        return bool(self.mode & 1 << 27)
