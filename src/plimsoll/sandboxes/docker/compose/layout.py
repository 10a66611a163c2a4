"""The layout of a checked compose file for one trial: the file for Compose, and main's settings.

The backend creates networks and volumes and only names them to Compose, so that every resource has
labels. Files of the task are copied into volumes and containers: the daemon may be on another
host, and a trial must not write to the task's folder.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from plimsoll.sandboxes.docker.compose.compose_file import (
    ComposeFile,
    Tree,
    rows,
    table,
    tables,
    words,
)
from plimsoll.sandboxes.docker.compose.rules import MAIN, capability_names, is_log_mount
from plimsoll.sandboxes.docker.container_spec import CAPABILITIES, MAX_PROCESSES
from plimsoll.sandboxes.protocol import Limits

__all__ = [
    "FileCopy",
    "Layout",
    "LayoutRequest",
    "MainLayout",
    "make_layout",
    "merge_limits",
    "unescape",
]

_NOT_FOR_COMPOSE = frozenset(
    """build cap_add cap_drop configs container_name deploy develop env_file label_file logging
    networks oom_score_adj ports profiles pull_policy restart secrets security_opt
    volumes""".split()  # noqa: SIM905
)
_LOGGING: Tree = {"driver": "json-file", "options": {"max-size": "10m", "max-file": "1"}}
_NO_NAME_SERVER = "127.0.0.1"
"""The container itself, where no name server listens."""
_FAST_DNS_FAILURE = ("timeout:1", "attempts:1")
"""Options for daemons that do not answer name queries at all, so that programs do not wait long."""
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file of the task or text of its compose file, and its path in a container."""

    content: Path | bytes
    target: str


@dataclass(slots=True)
class MainLayout:
    """The settings of the compose file for main, the sandbox's own container."""

    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    user: str | None = None
    limits: Limits = field(default_factory=Limits)
    networks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Networks by name, with main's aliases."""
    mounts: list[Tree] = field(default_factory=list[Tree])
    copies: list[FileCopy] = field(default_factory=list[FileCopy])
    host: Tree = field(default_factory=dict[str, object])
    """Further fields of HostConfig."""
    hostname: str | None = None
    waits_for: dict[str, str] = field(default_factory=dict[str, str])
    """Services that main depends on, with the condition."""


@dataclass(slots=True)
class Layout:
    """The layout of one project."""

    project: str
    compose: Tree = field(default_factory=dict[str, object])
    """The file for Compose, without main; empty if main is the only service."""
    main: MainLayout = field(default_factory=MainLayout)
    networks: list[str] = field(default_factory=list[str])
    volumes: list[str] = field(default_factory=list[str])
    folders: dict[str, Path] = field(default_factory=dict[str, Path])
    """Volumes to fill, with the folders of the task."""
    copies: dict[str, list[FileCopy]] = field(default_factory=dict[str, list[FileCopy]])
    """Files to copy into services other than main."""
    internal: set[str] = field(default_factory=set[str])
    """Services without a route outside under any policy, by the file's own networks."""
    ready_seconds: float = 0.0
    """Seconds within which all healthchecks have passed or failed."""

    @property
    def services(self) -> list[str]:
        return list(table(self.compose.get("services")))


@dataclass(frozen=True, slots=True)
class LayoutRequest:
    """The inputs of a layout."""

    file: ComposeFile
    model: Tree
    project: str
    labels: Mapping[str, str]
    images: Mapping[str, str]
    """The image of each service, as a reference for the daemon."""
    block_names: bool
    """Whether names outside of the project must not be resolved."""
    start_interval: bool
    """Whether the daemon supports this field of healthchecks."""
    cpus: int
    """The CPUs of the daemon's host; it refuses higher limits."""
    runtime: str | None = None
    """The OCI runtime of all services; default: the daemon's."""


def unescape(value: object) -> str:
    """A string of Compose's output without `$$` escapes."""
    return str(value).replace("$$", "$")


def make_layout(request: LayoutRequest) -> Layout:
    """Make the layout of one project."""
    layout = Layout(request.project)
    services: Tree = {}
    for name, service in tables(request.model.get("services")):
        if name == MAIN:
            _fill_main_layout(request, layout, service)
        else:
            services[name] = _service_layout(request, layout, name, service)
            check = table(service.get("healthcheck"))
            layout.ready_seconds = max(layout.ready_seconds, _healthcheck_seconds(check))
    if services:
        names = {*layout.networks}
        layout.compose = {
            "name": request.project,
            "services": services,
            "networks": {_key(request, n): {"name": n, "external": True} for n in sorted(names)},
            "volumes": {v: {"name": v, "external": True} for v in layout.volumes},
        }
    else:
        layout.networks, layout.main.networks = [], {}
    return layout


def _service_layout(request: LayoutRequest, layout: Layout, name: str, service: Tree) -> Tree:
    copies = layout.copies.setdefault(name, [])
    mounts = [_for_compose(mount) for mount in _mounts(request, layout, service, copies)]
    copied = {k: v for k, v in service.items() if k not in _NOT_FOR_COMPOSE and v is not None}
    deploy = table(service.get("deploy"))
    limits = table(table(deploy.get("resources")).get("limits"))
    memory = service.get("mem_limit") or limits.get("memory")
    result: Tree = {
        **copied,
        "image": request.images[name],
        "pull_policy": "never",
        "labels": {
            **table(service.get("labels")),
            **{k: _escape(v) for k, v in request.labels.items()},
        },
        "cap_drop": ["ALL"],
        "cap_add": _capabilities(service),
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": service.get("pids_limit") or limits.get("pids") or MAX_PROCESSES,
        "restart": _restart(service),
        "logging": _LOGGING,
        "volumes": mounts,
    }
    if not service.get("network_mode"):
        result["networks"] = _networks(request, layout, service)
    if memory:
        result |= {"mem_limit": memory, "memswap_limit": memory}
    if cpus := float(str(service.get("cpus") or limits.get("cpus") or 0)):
        result["cpus"] = min(cpus, request.cpus)
    if request.runtime:
        result["runtime"] = request.runtime
    if deploy.get("replicas"):
        result["scale"] = deploy["replicas"]
    if _is_internal(request, service):
        layout.internal.add(name)
    if request.block_names and not service.get("network_mode"):
        result |= {"dns": [_NO_NAME_SERVER], "dns_opt": list(_FAST_DNS_FAILURE)}
    check = table(service.get("healthcheck"))
    if check and not request.start_interval:
        result["healthcheck"] = {k: v for k, v in check.items() if k != "start_interval"}
    return result


def _is_internal(request: LayoutRequest, service: Tree) -> bool:
    networks = table(request.model.get("networks"))
    inner = (table(networks.get(key)).get("internal") for key in table(service.get("networks")))
    return bool(service.get("network_mode")) or all(inner)


def _fill_main_layout(request: LayoutRequest, layout: Layout, service: Tree) -> None:
    main = layout.main
    env = table(service.get("environment"))
    main.env = {key: unescape(value) for key, value in env.items() if value is not None}
    main.workdir = unescape(service["working_dir"]) if service.get("working_dir") else None
    main.user = unescape(service["user"]) if service.get("user") else None
    main.hostname = unescape(service["hostname"]) if service.get("hostname") else None
    main.mounts = [_for_daemon(mount) for mount in _mounts(request, layout, service, main.copies)]
    main.networks = {
        f"{request.project}_{key}": [MAIN, *words(table(options).get("aliases"))]
        for key, options in _networks(request, layout, service).items()
    }
    main.limits = _limits(service)
    main.waits_for = {
        name: str(needs.get("condition") or "service_started")
        for name, needs in tables(service.get("depends_on"))
        if needs.get("required", True)
    }
    main.host = _host_config(service)
    if request.block_names:
        main.host |= {"Dns": [_NO_NAME_SERVER], "DnsOptions": list(_FAST_DNS_FAILURE)}


def _host_config(service: Tree) -> Tree:
    host: Tree = {}
    if hosts := words(service.get("extra_hosts")):
        host["ExtraHosts"] = [unescape(entry).replace("=", ":", 1) for entry in hosts]
    if paths := words(service.get("tmpfs")):
        pairs = (unescape(path).partition(":") for path in paths)
        host["Tmpfs"] = {path: options for path, _, options in pairs}
    if service.get("shm_size"):
        host["ShmSize"] = int(str(service["shm_size"]))
    if sysctls := table(service.get("sysctls")):
        host["Sysctls"] = {key: unescape(value) for key, value in sysctls.items()}
    if ulimits := table(service.get("ulimits")):
        host["Ulimits"] = [_ulimit(name, value) for name, value in ulimits.items()]
    return host


def _ulimit(name: str, value: object) -> Tree:
    both = table(value) or {"soft": value, "hard": value}
    return {"Name": name, "Soft": int(str(both["soft"])), "Hard": int(str(both["hard"]))}


def _limits(service: Tree) -> Limits:
    deploy = table(table(table(service.get("deploy")).get("resources")).get("limits"))
    cpus = float(str(service.get("cpus") or deploy.get("cpus") or 0))
    memory = int(str(service.get("mem_limit") or deploy.get("memory") or 0))
    pids = int(str(service.get("pids_limit") or deploy.get("pids") or 0))
    return Limits(
        cpus=cpus or None, memory_mb=(memory >> 20) or None, pids=pids if pids > 0 else None
    )


def merge_limits(requested: Limits, file: Limits) -> Limits:
    """The limits of the task; those of its compose file where the task sets none."""
    return replace(
        requested,
        cpus=requested.cpus or file.cpus,
        memory_mb=requested.memory_mb or file.memory_mb,
        pids=requested.pids or file.pids,
    )


def _networks(request: LayoutRequest, layout: Layout, service: Tree) -> Tree:
    """The networks of a service; they are added to the layout."""
    found: Tree = {}
    for key, options in table(service.get("networks")).items():
        name = f"{request.project}_{key}"
        if name not in layout.networks:
            layout.networks.append(name)
        found[key] = {"aliases": words(table(options).get("aliases"))}
    return found


def _key(request: LayoutRequest, network: str) -> str:
    return network.removeprefix(f"{request.project}_")


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mount of a volume, named or anonymous, or of a tmpfs."""

    target: str
    volume: str | None = None
    read_only: bool = False
    no_copy: bool = False
    """The image's content at the target is not copied into the volume."""
    memory: bool = False


def _mounts(
    request: LayoutRequest, layout: Layout, service: Tree, copies: list[FileCopy]
) -> list[_Mount]:
    mounts: list[_Mount] = []
    for mount in map(table, rows(service.get("volumes"))):
        found = _mount(request, layout, mount)
        if isinstance(found, FileCopy):
            copies.append(found)
        elif found is not None:
            mounts.append(found)
    for kind in ("secrets", "configs"):
        for row in rows(service.get(kind)):
            copies.append(_file_copy(request, kind, table(row)))
    return mounts


def _mount(request: LayoutRequest, layout: Layout, mount: Tree) -> _Mount | FileCopy | None:
    source, target = unescape(mount.get("source") or ""), unescape(mount.get("target"))
    read_only = bool(mount.get("read_only"))
    if mount.get("type") == "tmpfs":
        return _Mount(target, memory=True)
    if mount.get("type") == "volume":
        name = f"{request.project}_{source}" if source else None
        if name is not None and name not in layout.volumes:
            layout.volumes.append(name)
        no_copy = bool(table(mount.get("volume")).get("nocopy"))
        return _Mount(target, name, read_only, no_copy)
    if is_log_mount(source):
        return None
    path = request.file.inside(source, "volumes")
    if path.is_file():
        return FileCopy(path, target)
    name = f"{request.project}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name not in layout.volumes:
        layout.volumes.append(name)
    if path.is_dir():
        layout.folders[name] = path
    return _Mount(target, name, read_only, no_copy=True)


def _file_copy(request: LayoutRequest, kind: str, row: Tree) -> FileCopy:
    name = str(row.get("source"))
    entry = table(table(request.model.get(kind)).get(name))
    target = unescape(row.get("target") or name)
    if not target.startswith("/"):
        target = f"/run/secrets/{target}" if kind == "secrets" else f"/{target}"
    if entry.get("file"):
        return FileCopy(request.file.inside(unescape(entry["file"]), kind, name, "file"), target)
    return FileCopy(unescape(entry.get("content") or "").encode(), target)


def _for_compose(mount: _Mount) -> Tree:
    if mount.memory:
        return {"type": "tmpfs", "target": _escape(mount.target)}
    result: Tree = {"type": "volume", "target": _escape(mount.target), "read_only": mount.read_only}
    if mount.volume is not None:
        result |= {"source": mount.volume, "volume": {"nocopy": mount.no_copy}}
    return result


def _for_daemon(mount: _Mount) -> Tree:
    if mount.memory:
        return {"Type": "tmpfs", "Target": mount.target}
    result: Tree = {"Type": "volume", "Target": mount.target, "ReadOnly": mount.read_only}
    if mount.volume is not None:
        result |= {"Source": mount.volume, "VolumeOptions": {"NoCopy": mount.no_copy}}
    return result


def _capabilities(service: Tree) -> list[str]:
    """The capabilities of every sandbox without those that the service drops."""
    dropped = capability_names(service.get("cap_drop"))
    copied = set[str]() if "ALL" in dropped else set(CAPABILITIES) - dropped
    return sorted(copied | capability_names(service.get("cap_add")))


def _restart(service: Tree) -> str:
    """A restart policy that never restarts the service with the daemon."""
    requested = str(service.get("restart") or "no")
    return requested if requested.startswith("on-failure") or requested == "no" else "on-failure"


def _healthcheck_seconds(check: Tree) -> float:
    """Seconds after which a healthcheck has failed for good."""
    if not check or check.get("disable"):
        return 0.0
    once = _duration(check.get("interval"), 30) + _duration(check.get("timeout"), 30)
    tries = int(str(check.get("retries") or 3))
    return _duration(check.get("start_period"), 0) + tries * once


def _duration(value: object, default: float) -> float:
    found = re.findall(r"([\d.]+)(h|ms|us|ns|m|s)", str(value or ""))
    return sum(float(n) * _SECONDS[unit] for n, unit in found) if found else default


def _escape(text: str) -> str:
    return text.replace("$", "$$")
