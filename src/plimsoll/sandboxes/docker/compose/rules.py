"""The rules for compose files: keys that would weaken the sandbox are refused by name.

Supported keys are listed, not only refused ones, so an unlisted key is refused as well.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial

from plimsoll.sandboxes.docker.compose.compose_file import (
    ComposeFile,
    Tree,
    rows,
    table,
    tables,
    words,
)
from plimsoll.sandboxes.docker.container_spec import CAPABILITIES

__all__ = ["HOST_LOGS", "MAIN", "capability_names", "check_model", "is_log_mount"]

MAIN = "main"

HOST_LOGS = "/plimsoll-host-logs"
"""Placeholder of the host's log folders, which other runners mount; they are not needed here."""

_SERVICE_KEYS = frozenset(
    """annotations attach build cap_add cap_drop command configs cpu_count cpu_percent cpu_period
    cpu_quota cpu_shares cpus cpuset depends_on deploy dns_opt dns_search domainname entrypoint
    env_file environment expose extra_hosts group_add healthcheck hostname image init ipc
    label_file labels links logging mem_limit mem_reservation mem_swappiness memswap_limit
    network_mode networks pids_limit platform post_start pre_stop profiles pull_policy read_only
    restart scale secrets security_opt shm_size stdin_open stop_grace_period stop_signal sysctls
    tmpfs tty ulimits user volumes working_dir""".split()  # noqa: SIM905
)
_MAIN_KEYS = frozenset(
    """annotations attach build cap_add cap_drop command configs cpus depends_on deploy entrypoint
    env_file environment expose extra_hosts hostname image init label_file labels logging mem_limit
    memswap_limit networks pids_limit platform profiles pull_policy restart secrets security_opt
    shm_size stdin_open stop_grace_period stop_signal sysctls tmpfs tty ulimits user volumes
    working_dir""".split()  # noqa: SIM905
)
_IGNORED = {
    "container_name": "trials run in parallel, so the name is not used",
    "ports": "trials run in parallel, so no port is published on the host; "
    "services reach each other by name",
    "develop": "files are not watched",
    "oom_score_adj": "it is not used",
}
_IGNORED_FOR_MAIN = {
    "healthcheck": "it is not used for main: environment.healthcheck of task.toml is",
}
_REFUSED = {
    "privileged": "a privileged container is root on the host",
    "devices": "devices of the host are not given to sandboxes",
    "device_cgroup_rules": "devices of the host are not given to sandboxes",
    "gpus": "GPUs are requested in task.toml (environment.gpus), only for main",
    "cgroup_parent": "a task must not choose the host's control groups",
    "oom_kill_disable": "a service that the kernel cannot kill for memory can stop the host",
    "pid": "it would see the processes of the host or of another container",
    "uts": "it would share the host's UTS namespace",
    "userns_mode": "it would leave the daemon's user namespace",
    "cgroup": "it would see the host's control groups",
    "runtime": "it is set for all containers of a run: [docker] runtime in the config",
    "volumes_from": "name the volumes instead",
    "external_links": "containers outside of the task are not reachable",
    "use_api_socket": "access to the daemon's socket is root access to the host",
    "provider": "it would run a command on the host",
    "credential_spec": "it would read the host's credentials",
}
_TOP_LEVEL = frozenset({"name", "version", "services", "networks", "volumes", "secrets", "configs"})
_BUILD_KEYS = frozenset(
    """context dockerfile args target labels tags cache_from cache_to no_cache pull""".split()  # noqa: SIM905
)
_SHELL = r"(?:/(?:\w+/)*)?(?:ba|da|z)?sh"
_IDLE_COMMAND = re.compile(
    rf"(?:{_SHELL} -l?c )?(?:exec )?(?:sleep \S+|tail -f /dev/null|{_SHELL}|cat|"
    r"while (?:true|:) ?; do sleep \S+ ?; done)?;?"
)
_SOCKETS = re.compile(r"(?:docker|containerd|podman|crio)\S*\.sock$|^/(?:var/)?run/?$|^/$")


def check_model(file: ComposeFile, model: Tree) -> list[str]:
    """Check the model that Compose made of the file. Returns warnings.

    Raises `SandboxUnsupported` for the first refused key.
    """
    for key, value in model.items():
        if key not in _TOP_LEVEL and not key.startswith("x-") and value:
            file.refuse(key, why="unknown key")
    warnings: list[str] = []
    for name, service in tables(model.get("services")):
        warnings += _check_service(file, name, service)
    _check_networks(file, model.get("networks"))
    _check_volumes(file, model.get("volumes"))
    for kind in ("secrets", "configs"):
        _check_files(file, kind, model.get(kind))
    return warnings


def is_log_mount(source: str) -> bool:
    """Whether a bind mount is one of the log folders, which stay in the sandbox."""
    return source == HOST_LOGS or source.startswith(f"{HOST_LOGS}/")


def capability_names(value: object) -> set[str]:
    """The names of a list of capabilities, as the daemon writes them: NET_BIND_SERVICE."""
    return {word.upper().removeprefix("CAP_") for word in words(value)}


def _check_service(file: ComposeFile, name: str, service: Tree) -> list[str]:
    path = ("services", name)
    ignored = _IGNORED | (_IGNORED_FOR_MAIN if name == MAIN else {})
    supported = _MAIN_KEYS if name == MAIN else _SERVICE_KEYS
    warnings: list[str] = []
    # Compose derives depends_on from other keys, whose messages are clearer.
    for key, value in sorted(service.items(), key=lambda pair: pair[0] == "depends_on"):
        if value in (None, False, "", [], {}) or key.startswith("x-"):
            continue
        if key in _REFUSED:
            file.refuse(*path, key, why=_REFUSED[key])
        if key in ignored:
            warnings.append(f"{file.where(*path, key)}: {ignored[key]}")
        elif key not in supported:
            why = "main is the sandbox itself" if key in _SERVICE_KEYS else "unknown key"
            file.refuse(*path, key, why=why)
        elif key in _CHECKS:
            _CHECKS[key](file, name, value)
    if name == MAIN:
        _check_main_command(file, service)
    return warnings


def _check_main_command(file: ComposeFile, service: Tree) -> None:
    argv = [*words(service.get("entrypoint")), *words(service.get("command"))]
    if not _IDLE_COMMAND.fullmatch(" ".join(argv).strip()):
        key = "command" if service.get("command") else "entrypoint"
        file.refuse(
            "services",
            MAIN,
            key,
            why="main is the sandbox and runs no command: move it to another service, "
            "or start it in a step's workdir/setup.sh",
        )


def _check_build(file: ComposeFile, name: str, value: object) -> None:
    path = ("services", name, "build")
    build = table(value)
    for key, given in build.items():
        if given and key not in _BUILD_KEYS:
            file.refuse(*path, key, why="not supported here")
    context = str(build.get("context") or ".")
    if re.match(r"[\w+.-]+://|git@|github\.com/", context):
        file.refuse(*path, "context", why="the context must be a folder of the task")
    folder = file.inside(context, *path, "context")
    file.inside(str(folder / str(build.get("dockerfile") or "Dockerfile")), *path, "dockerfile")


def _check_capabilities(file: ComposeFile, name: str, value: object) -> None:
    requested = capability_names(value)
    if beyond := sorted(requested - set(CAPABILITIES)):
        allowed = ", ".join(CAPABILITIES)
        why = f"{', '.join(beyond)} is not allowed in a sandbox ({allowed})"
        file.refuse("services", name, "cap_add", why=why)


def _check_security(file: ComposeFile, name: str, value: object) -> None:
    for option in words(value):
        if not re.fullmatch(r"no-new-privileges(?:[:=]true)?", option):
            why = f"{option} weakens the sandbox"
            file.refuse("services", name, "security_opt", why=why)


def _check_network_mode(file: ComposeFile, name: str, value: object) -> None:
    shared = str(value).removeprefix("service:")
    if value != "none" and shared in (value, MAIN):
        file.refuse(
            "services", name, "network_mode", why=f"{value} is not the project's own network"
        )


def _check_ipc(file: ComposeFile, name: str, value: object) -> None:
    shared = str(value).removeprefix("service:")
    if value not in ("private", "shareable", "none") and shared in (value, MAIN):
        file.refuse("services", name, "ipc", why=f"{value} is not the service's own memory")


def _check_hooks(key: str, file: ComposeFile, name: str, value: object) -> None:
    for hook in rows(value):
        if table(hook).get("privileged"):
            why = "a privileged hook is root on the host"
            file.refuse("services", name, key, "privileged", why=why)


def _check_deploy(file: ComposeFile, name: str, value: object) -> None:
    reserved = table(table(table(value).get("resources")).get("reservations"))
    if reserved.get("devices") or reserved.get("generic_resources"):
        file.refuse("services", name, "deploy", "devices", why=_REFUSED["gpus"])


def _check_depends(file: ComposeFile, name: str, value: object) -> None:
    if MAIN in table(value):
        why = "main starts last, when all services are ready"
        file.refuse("services", name, "depends_on", why=why)


def _check_service_networks(file: ComposeFile, name: str, value: object) -> None:
    for network, options in tables(value):
        for key in options:
            if key not in ("aliases", "priority"):
                why = "trials run in parallel, so addresses cannot be fixed"
                file.refuse("services", name, "networks", network, key, why=why)


def _check_mounts(file: ComposeFile, name: str, value: object) -> None:
    path = ("services", name, "volumes")
    for mount in map(table, rows(value)):
        kind, source = mount.get("type"), str(mount.get("source") or "")
        if kind not in ("bind", "volume", "tmpfs"):
            file.refuse(*path, why=f"mounts of type {kind} are not supported")
        if table(mount.get("volume")).get("subpath"):
            file.refuse(*path, "subpath", why="not supported here")
        if kind != "bind" or is_log_mount(source):
            continue
        if _SOCKETS.search(source):
            file.refuse(
                *path, why=f"{source}: access to the daemon's socket is root access to the host"
            )
        if table(mount.get("bind")).get("propagation"):
            file.refuse(*path, "propagation", why="mounts are not shared with the host")
        file.inside(source, *path)


def _check_networks(file: ComposeFile, networks: object) -> None:
    for name, network in tables(networks):
        for key, value in network.items():
            if key == "external" and value:
                file.refuse("networks", name, key, why="external networks are not supported")
            if key == "driver" and value not in ("bridge", "default"):
                file.refuse("networks", name, key, why=f"{value} is not an isolated network")
            if key == "ipam" and table(value).get("config"):
                why = "trials run in parallel, so addresses cannot be fixed"
                file.refuse("networks", name, key, why=why)
            if key == "driver_opts" and value:
                file.refuse("networks", name, key, why="not supported here")


def _check_volumes(file: ComposeFile, volumes: object) -> None:
    for name, volume in tables(volumes):
        for key, value in volume.items():
            if key == "external" and value:
                file.refuse("volumes", name, key, why="external volumes are not supported")
            if key == "driver" and value != "local":
                file.refuse("volumes", name, key, why=f"the driver {value} is not supported")
            if key == "driver_opts" and value:
                file.refuse("volumes", name, key, why="it could mount folders of the host")


def _check_files(file: ComposeFile, kind: str, files: object) -> None:
    for name, entry in tables(files):
        if entry.get("file"):
            file.inside(str(entry["file"]), kind, name, "file")
        elif "content" not in entry:
            file.refuse(kind, name, why="only a file of the task or content is supported")


_CHECKS: Mapping[str, Callable[[ComposeFile, str, object], None]] = {
    "build": _check_build,
    "cap_add": _check_capabilities,
    "security_opt": _check_security,
    "network_mode": _check_network_mode,
    "ipc": _check_ipc,
    "post_start": partial(_check_hooks, "post_start"),
    "pre_stop": partial(_check_hooks, "pre_stop"),
    "deploy": _check_deploy,
    "depends_on": _check_depends,
    "networks": _check_service_networks,
    "volumes": _check_mounts,
}
