"""What the engine's API answers, as far as it is read here."""

from typing import Any

import msgspec

__all__ = [
    "Container",
    "ContainerRow",
    "Image",
    "ImageRow",
    "Info",
    "Made",
    "Network",
    "NetworkRow",
    "PathStat",
    "Usage",
    "Version",
    "Volume",
    "Volumes",
]

Labels = dict[str, str]


class _Answer(msgspec.Struct, frozen=True, rename="pascal"):
    """The API's names begin with capital letters; what is not named here is passed over."""


class Version(_Answer, frozen=True):
    """The engine's version."""

    version: str = ""
    api: str = msgspec.field(default="1.24", name="ApiVersion")
    os: str = ""
    arch: str = ""


class Info(_Answer, frozen=True):
    """What the engine's host can do."""

    architecture: str = ""
    os_type: str = msgspec.field(default="", name="OSType")
    operating_system: str = ""
    driver: str = ""
    driver_status: list[list[str]] | None = None
    cgroup_version: str = "1"
    root_dir: str = msgspec.field(default="", name="DockerRootDir")
    runtimes: dict[str, Any] = {}
    security_options: list[str] | None = None
    cpus: int = msgspec.field(default=0, name="NCPU")
    memory: int = msgspec.field(default=0, name="MemTotal")
    memory_limit: bool = True
    swap_limit: bool = True
    pids_limit: bool = True
    name: str = ""
    id: str = msgspec.field(default="", name="ID")


class Made(_Answer, frozen=True):
    """The id of something that was created."""

    id: str
    warnings: list[str] | None = None


class State(_Answer, frozen=True):
    """How a container is, or how it ended."""

    status: str = ""
    running: bool = False
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    exit_code: int = 0
    error: str = ""
    started_at: str = ""
    finished_at: str = ""


class Attached(_Answer, frozen=True):
    """A container's place in a network."""

    network: str = msgspec.field(default="", name="NetworkID")
    address: str = msgspec.field(default="", name="IPAddress")


class Networking(_Answer, frozen=True):
    networks: dict[str, Attached] | None = None


class MountPoint(_Answer, frozen=True):
    type: str = ""
    name: str = ""
    source: str = ""
    destination: str = ""
    rw: bool = msgspec.field(default=True, name="RW")


class ContainerConfig(_Answer, frozen=True):
    labels: Labels | None = None
    env: list[str] | None = None


class Container(_Answer, frozen=True):
    """One container, looked at closely."""

    id: str
    name: str = ""
    image: str = ""
    created: str = ""
    state: State = State()
    config: ContainerConfig = ContainerConfig()
    network_settings: Networking = Networking()
    mounts: list[MountPoint] | None = None


class ContainerRow(_Answer, frozen=True):
    """One container of a list."""

    id: str
    names: list[str] = []
    image: str = ""
    image_id: str = msgspec.field(default="", name="ImageID")
    command: str = ""
    state: str = ""
    status: str = ""
    created: float = 0
    labels: Labels | None = None
    network_settings: Networking = Networking()
    mounts: list[MountPoint] = []


class ImageConfig(_Answer, frozen=True):
    env: list[str] | None = None
    working_dir: str = ""
    user: str = ""
    labels: Labels | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    on_build: list[str] | None = None


class ImageMetadata(_Answer, frozen=True):
    last_tag_time: str = ""


class Image(_Answer, frozen=True):
    """One image, looked at closely."""

    id: str
    repo_tags: list[str] | None = None
    created: str = ""
    size: int = 0
    architecture: str = ""
    config: ImageConfig | None = None
    metadata: ImageMetadata = ImageMetadata()

    @property
    def env(self) -> dict[str, str]:
        pairs = (self.config.env if self.config else None) or []
        return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}

    @property
    def labels(self) -> Labels:
        return (self.config.labels if self.config else None) or {}


class ImageRow(_Answer, frozen=True):
    """One image of a list."""

    id: str
    parent_id: str = ""
    repo_tags: list[str] | None = None
    created: float = 0
    size: int = 0
    shared_size: int = -1
    labels: Labels | None = None


class NetworkRow(_Answer, frozen=True):
    """One network of a list."""

    id: str
    name: str = ""
    created: str = ""
    internal: bool = False
    labels: Labels | None = None


class Member(_Answer, frozen=True):
    name: str = ""


class Network(NetworkRow, frozen=True):
    """One network, with who is in it, by the containers' ids."""

    containers: dict[str, Member] | None = None


class UsageData(_Answer, frozen=True):
    size: int = -1
    ref_count: int = -1


class Volume(_Answer, frozen=True):
    """One volume."""

    name: str
    created_at: str = ""
    labels: Labels | None = None
    usage_data: UsageData | None = None


class Volumes(_Answer, frozen=True):
    volumes: list[Volume] | None = None


class Usage(_Answer, frozen=True):
    """What takes up the engine's disk."""

    layers_size: int = 0
    images: list[ImageRow] | None = None
    volumes: list[Volume] | None = None


class PathStat(msgspec.Struct, frozen=True):
    """What stands at a path in a container."""

    name: str
    size: int
    mode: int
    """As Go has it: the permissions, with bits of its own above them."""
    link_target: str = msgspec.field(default="", name="linkTarget")

    @property
    def is_folder(self) -> bool:
        return bool(self.mode & 1 << 31)

    @property
    def is_link(self) -> bool:
        return bool(self.mode & 1 << 27)
