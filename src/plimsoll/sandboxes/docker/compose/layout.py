"""What becomes of a checked compose file in one trial: what Compose starts, and what main gets.

Networks and volumes are made by the backend and only named to Compose, so that all that is
made carries labels. Files of the task are carried into volumes and containers: the engine may
be elsewhere, and what a trial writes must not reach the task's folder.
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
from plimsoll.sandboxes.docker.compose.rules import MAIN, is_log_mount
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
"""The container itself, which answers no questions about names."""
_FAST_DNS_FAILURE = ("timeout:1", "attempts:1")
"""Engines that have to be told so do not answer either, so that programs would wait long."""
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file of the task, or a text in its compose file, and where a container has it."""

    content: Path | bytes
    target: str


@dataclass(slots=True)
class MainLayout:
    """What the compose file says of the sandbox's own container."""

    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    user: str | None = None
    limits: Limits = field(default_factory=Limits)
    networks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Names of networks, with the names that main has in them."""
    mounts: list[Tree] = field(default_factory=list[Tree])
    copies: list[FileCopy] = field(default_factory=list[FileCopy])
    host: Tree = field(default_factory=dict[str, object])
    """What else goes into the engine's HostConfig."""
    hostname: str | None = None
    waits_for: dict[str, str] = field(default_factory=dict[str, str])
    """Services, with what they must have come to."""


@dataclass(slots=True)
class Layout:
    """One project."""

    project: str
    compose: Tree = field(default_factory=dict[str, object])
    """The file that Compose gets, without main; empty where main is alone."""
    main: MainLayout = field(default_factory=MainLayout)
    networks: list[str] = field(default_factory=list[str])
    volumes: list[str] = field(default_factory=list[str])
    folders: dict[str, Path] = field(default_factory=dict[str, Path])
    """Volumes that are filled from folders of the task."""
    copies: dict[str, list[FileCopy]] = field(default_factory=dict[str, list[FileCopy]])
    """Files for services other than main."""
    shut: set[str] = field(default_factory=set[str])
    """Services that have no way out under any policy: the file wants it so."""
    patience: float = 0.0
    """Seconds within which all services are ready by their own healthchecks' rules."""

    @property
    def services(self) -> list[str]:
        return list(table(self.compose.get("services")))


@dataclass(frozen=True, slots=True)
class LayoutRequest:
    """What is laid out."""

    file: ComposeFile
    model: Tree
    project: str
    labels: Mapping[str, str]
    images: Mapping[str, str]
    """The image of each service, as the engine has it."""
    no_names: bool
    """Names outside of the project are not to be resolved."""
    start_interval: bool
    """Whether the engine knows that part of healthchecks."""
    cpus: int
    """How many the engine has; it refuses to give more."""
    runtime: str | None = None
    """The OCI runtime of all services; the daemon's default otherwise."""


def unescape(value: object) -> str:
    """A text of Compose's output without its escapes."""
    return str(value).replace("$$", "$")


def make_layout(order: LayoutRequest) -> Layout:
    """Lay out one project."""
    layout = Layout(order.project)
    services: Tree = {}
    for name, service in tables(order.model.get("services")):
        if name == MAIN:
            _lay_out_main(order, layout, service)
        else:
            services[name] = _lay_out_service(order, layout, name, service)
            check = table(service.get("healthcheck"))
            layout.patience = max(layout.patience, _healthcheck_seconds(check))
    if services:
        names = {*layout.networks}
        layout.compose = {
            "name": order.project,
            "services": services,
            "networks": {_key(order, n): {"name": n, "external": True} for n in sorted(names)},
            "volumes": {v: {"name": v, "external": True} for v in layout.volumes},
        }
    else:
        layout.networks, layout.main.networks = [], {}
    return layout


def _lay_out_service(order: LayoutRequest, layout: Layout, name: str, service: Tree) -> Tree:
    copies = layout.copies.setdefault(name, [])
    mounts = [_for_compose(mount) for mount in _mounts(order, layout, service, copies)]
    kept = {k: v for k, v in service.items() if k not in _NOT_FOR_COMPOSE and v is not None}
    deploy = table(service.get("deploy"))
    limits = table(table(deploy.get("resources")).get("limits"))
    memory = service.get("mem_limit") or limits.get("memory")
    made: Tree = {
        **kept,
        "image": order.images[name],
        "pull_policy": "never",
        "labels": {
            **table(service.get("labels")),
            **{k: _escape(v) for k, v in order.labels.items()},
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
        made["networks"] = _networks(order, layout, service)
    if memory:
        made |= {"mem_limit": memory, "memswap_limit": memory}
    if cpus := float(str(service.get("cpus") or limits.get("cpus") or 0)):
        made["cpus"] = min(cpus, order.cpus)
    if order.runtime:
        made["runtime"] = order.runtime
    if deploy.get("replicas"):
        made["scale"] = deploy["replicas"]
    if _is_internal(order, service):
        layout.shut.add(name)
    if order.no_names and not service.get("network_mode"):
        made |= {"dns": [_NO_NAME_SERVER], "dns_opt": list(_FAST_DNS_FAILURE)}
    check = table(service.get("healthcheck"))
    if check and not order.start_interval:
        made["healthcheck"] = {k: v for k, v in check.items() if k != "start_interval"}
    return made


def _is_internal(order: LayoutRequest, service: Tree) -> bool:
    networks = table(order.model.get("networks"))
    inner = (table(networks.get(key)).get("internal") for key in table(service.get("networks")))
    return bool(service.get("network_mode")) or all(inner)


def _lay_out_main(order: LayoutRequest, layout: Layout, service: Tree) -> None:
    main = layout.main
    env = table(service.get("environment"))
    main.env = {key: unescape(value) for key, value in env.items() if value is not None}
    main.workdir = unescape(service["working_dir"]) if service.get("working_dir") else None
    main.user = unescape(service["user"]) if service.get("user") else None
    main.hostname = unescape(service["hostname"]) if service.get("hostname") else None
    main.mounts = [_for_engine(mount) for mount in _mounts(order, layout, service, main.copies)]
    main.networks = {
        f"{order.project}_{key}": [MAIN, *words(table(options).get("aliases"))]
        for key, options in _networks(order, layout, service).items()
    }
    main.limits = _limits(service)
    main.waits_for = {
        name: str(needs.get("condition") or "service_started")
        for name, needs in tables(service.get("depends_on"))
        if needs.get("required", True)
    }
    main.host = _host_config(service)
    if order.no_names:
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


def merge_limits(asked: Limits, file: Limits) -> Limits:
    """A task's limits; those of its compose file where it says nothing."""
    return replace(
        asked,
        cpus=asked.cpus or file.cpus,
        memory_mb=asked.memory_mb or file.memory_mb,
        pids=asked.pids or file.pids,
    )


def _networks(order: LayoutRequest, layout: Layout, service: Tree) -> Tree:
    """The networks that a service is in, which are then to be made."""
    found: Tree = {}
    for key, options in table(service.get("networks")).items():
        name = f"{order.project}_{key}"
        if name not in layout.networks:
            layout.networks.append(name)
        found[key] = {"aliases": words(table(options).get("aliases"))}
    return found


def _key(order: LayoutRequest, network: str) -> str:
    return network.removeprefix(f"{order.project}_")


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mount that is a volume, named or not, or memory."""

    target: str
    volume: str | None = None
    read_only: bool = False
    no_copy: bool = False
    """What the image has there is not copied into the volume first."""
    memory: bool = False


def _mounts(
    order: LayoutRequest, layout: Layout, service: Tree, copies: list[FileCopy]
) -> list[_Mount]:
    mounts: list[_Mount] = []
    for mount in map(table, rows(service.get("volumes"))):
        found = _mount(order, layout, mount)
        if isinstance(found, FileCopy):
            copies.append(found)
        elif found is not None:
            mounts.append(found)
    for kind in ("secrets", "configs"):
        for row in rows(service.get(kind)):
            copies.append(_file_copy(order, kind, table(row)))
    return mounts


def _mount(order: LayoutRequest, layout: Layout, mount: Tree) -> _Mount | FileCopy | None:
    source, target = unescape(mount.get("source") or ""), unescape(mount.get("target"))
    read_only = bool(mount.get("read_only"))
    if mount.get("type") == "tmpfs":
        return _Mount(target, memory=True)
    if mount.get("type") == "volume":
        name = f"{order.project}_{source}" if source else None
        if name is not None and name not in layout.volumes:
            layout.volumes.append(name)
        no_copy = bool(table(mount.get("volume")).get("nocopy"))
        return _Mount(target, name, read_only, no_copy)
    if is_log_mount(source):
        return None
    path = order.file.inside(source, "volumes")
    if path.is_file():
        return FileCopy(path, target)
    name = f"{order.project}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name not in layout.volumes:
        layout.volumes.append(name)
    if path.is_dir():
        layout.folders[name] = path
    return _Mount(target, name, read_only, no_copy=True)


def _file_copy(order: LayoutRequest, kind: str, row: Tree) -> FileCopy:
    name = str(row.get("source"))
    entry = table(table(order.model.get(kind)).get(name))
    target = unescape(row.get("target") or name)
    if not target.startswith("/"):
        target = f"/run/secrets/{target}" if kind == "secrets" else f"/{target}"
    if entry.get("file"):
        return FileCopy(order.file.inside(unescape(entry["file"]), kind, name, "file"), target)
    return FileCopy(unescape(entry.get("content") or "").encode(), target)


def _for_compose(mount: _Mount) -> Tree:
    if mount.memory:
        return {"type": "tmpfs", "target": _escape(mount.target)}
    made: Tree = {"type": "volume", "target": _escape(mount.target), "read_only": mount.read_only}
    if mount.volume is not None:
        made |= {"source": mount.volume, "volume": {"nocopy": mount.no_copy}}
    return made


def _for_engine(mount: _Mount) -> Tree:
    if mount.memory:
        return {"Type": "tmpfs", "Target": mount.target}
    made: Tree = {"Type": "volume", "Target": mount.target, "ReadOnly": mount.read_only}
    if mount.volume is not None:
        made |= {"Source": mount.volume, "VolumeOptions": {"NoCopy": mount.no_copy}}
    return made


def _capabilities(service: Tree) -> list[str]:
    """Those of every sandbox, less what the service itself drops."""
    dropped = _upper(service.get("cap_drop"))
    kept = set[str]() if "ALL" in dropped else set(CAPABILITIES) - dropped
    return sorted(kept | _upper(service.get("cap_add")))


def _upper(value: object) -> set[str]:
    return {word.upper().removeprefix("CAP_") for word in words(value)}


def _restart(service: Tree) -> str:
    """A service may be started again when it failed, but not when the engine is."""
    asked = str(service.get("restart") or "no")
    return asked if asked.startswith("on-failure") or asked == "no" else "on-failure"


def _healthcheck_seconds(check: Tree) -> float:
    """Seconds after which a healthcheck has given up."""
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
