"""What a compose file may ask for. What would open a wall of the sandbox is refused by name.

Rules list what is taken, not only what is refused: a key that nobody has thought about is
refused as well.
"""

import re
from collections.abc import Callable, Mapping

from plimsoll.sandboxes.docker.compose.compose_file import (
    ComposeFile,
    Tree,
    rows,
    table,
    tables,
    words,
)
from plimsoll.sandboxes.docker.container_spec import CAPABILITIES

__all__ = ["HOST_LOGS", "MAIN", "check_model", "is_log_mount"]

MAIN = "main"

HOST_LOGS = "/plimsoll-host-logs"
"""Stands for the host's log folders, which other runners mount and sandboxes here do not need."""

_ANY_SERVICE = frozenset(
    """annotations attach build cap_add cap_drop command configs cpu_count cpu_percent cpu_period
    cpu_quota cpu_shares cpus cpuset depends_on deploy dns_opt dns_search domainname entrypoint
    env_file environment expose extra_hosts group_add healthcheck hostname image init ipc
    label_file labels links logging mem_limit mem_reservation mem_swappiness memswap_limit
    network_mode networks pids_limit platform post_start pre_stop profiles pull_policy read_only
    restart scale secrets security_opt shm_size stdin_open stop_grace_period stop_signal sysctls
    tmpfs tty ulimits user volumes working_dir""".split()  # noqa: SIM905
)
_MAIN_SERVICE = frozenset(
    """annotations attach build cap_add cap_drop command configs cpus depends_on deploy entrypoint
    env_file environment expose extra_hosts hostname image init label_file labels logging mem_limit
    memswap_limit networks pids_limit platform profiles pull_policy restart secrets security_opt
    shm_size stdin_open stop_grace_period stop_signal sysctls tmpfs tty ulimits user volumes
    working_dir""".split()  # noqa: SIM905
)
_DROPPED = {
    "container_name": "trials run side by side, so the name is not used",
    "ports": "trials run side by side, so nothing is published on the host; "
    "services reach each other by name",
    "develop": "files are not watched",
    "oom_score_adj": "it is not used",
}
_DROPPED_OF_MAIN = {
    "healthcheck": "it is not used for main: environment.healthcheck of task.toml is",
}
_REFUSED = {
    "privileged": "a privileged container is root on the host",
    "devices": "devices of the host are not given to sandboxes",
    "device_cgroup_rules": "devices of the host are not given to sandboxes",
    "gpus": "GPUs are asked for in task.toml (environment.gpus), for main alone",
    "cgroup_parent": "the host's control groups are not a task's to choose",
    "oom_kill_disable": "a service that cannot be killed for memory stops the host",
    "pid": "it would see the processes of the host or of another container",
    "uts": "it would share the host's name",
    "userns_mode": "it would leave the engine's user namespace",
    "cgroup": "it would see the host's control groups",
    "runtime": "[docker] runtime of the config names it, for all containers of a run",
    "volumes_from": "name the volumes instead",
    "external_links": "containers outside of the task are not reached",
    "use_api_socket": "whoever reaches the engine's socket is root on the host",
    "provider": "it would run a command on the host",
    "credential_spec": "it would read the host's credentials",
}
_TOP = frozenset({"name", "version", "services", "networks", "volumes", "secrets", "configs"})
_BUILD = frozenset(
    """context dockerfile args target labels tags cache_from cache_to no_cache pull""".split()  # noqa: SIM905
)
_SHELL = r"(?:/(?:\w+/)*)?(?:ba|da|z)?sh"
_SLEEPS = re.compile(
    rf"(?:{_SHELL} -l?c )?(?:exec )?(?:sleep \S+|tail -f /dev/null|{_SHELL}|cat|"
    r"while (?:true|:) ?; do sleep \S+ ?; done)?;?"
)
_SOCKETS = re.compile(r"(?:docker|containerd|podman|crio)\S*\.sock$|^/(?:var/)?run/?$|^/$")


def check_model(file: ComposeFile, model: Tree) -> list[str]:
    """Check what Compose made of the file; the warnings.

    `SandboxUnsupported` names the first thing that is refused.
    """
    for key, value in model.items():
        if key not in _TOP and not key.startswith("x-") and value:
            file.refuse(key, why="not known here")
    warnings: list[str] = []
    for name, service in tables(model.get("services")):
        warnings += _check_service(file, name, service)
    _check_networks(file, model.get("networks"))
    _check_volumes(file, model.get("volumes"))
    for kind in ("secrets", "configs"):
        _check_files(file, kind, model.get(kind))
    return warnings


def is_log_mount(source: str) -> bool:
    """Whether a bind mount is of the logs, which stay in the sandbox."""
    return source == HOST_LOGS or source.startswith(f"{HOST_LOGS}/")


def _check_service(file: ComposeFile, name: str, service: Tree) -> list[str]:
    place = ("services", name)
    dropped = _DROPPED | (_DROPPED_OF_MAIN if name == MAIN else {})
    taken = _MAIN_SERVICE if name == MAIN else _ANY_SERVICE
    warnings: list[str] = []
    # Compose derives depends_on from other keys, and those say more.
    for key, value in sorted(service.items(), key=lambda pair: pair[0] == "depends_on"):
        if value in (None, False, "", [], {}) or key.startswith("x-"):
            continue
        if key in _REFUSED:
            file.refuse(*place, key, why=_REFUSED[key])
        if key in dropped:
            warnings.append(f"{file.where(*place, key)}: {dropped[key]}")
        elif key not in taken:
            why = "main is the sandbox itself" if key in _ANY_SERVICE else "not known here"
            file.refuse(*place, key, why=why)
        elif key in _CHECKS:
            _CHECKS[key](file, name, value)
    if name == MAIN:
        _check_main_command(file, service)
    return warnings


def _check_main_command(file: ComposeFile, service: Tree) -> None:
    argv = [*words(service.get("entrypoint")), *words(service.get("command"))]
    if not _SLEEPS.fullmatch(" ".join(argv).strip()):
        key = "command" if service.get("command") else "entrypoint"
        file.refuse(
            "services",
            MAIN,
            key,
            why="main is the sandbox, and runs nothing by itself: make it a service of its own, "
            "or start it in a step's workdir/setup.sh",
        )


def _check_build(file: ComposeFile, name: str, value: object) -> None:
    place = ("services", name, "build")
    build = table(value)
    for key, given in build.items():
        if given and key not in _BUILD:
            file.refuse(*place, key, why="not supported here")
    context = str(build.get("context") or ".")
    if re.match(r"[\w+.-]+://|git@|github\.com/", context):
        file.refuse(*place, "context", why="a context has to be a folder of the task")
    folder = file.inside(context, *place, "context")
    file.inside(str(folder / str(build.get("dockerfile") or "Dockerfile")), *place, "dockerfile")


def _check_capabilities(file: ComposeFile, name: str, value: object) -> None:
    wanted = {word.upper().removeprefix("CAP_") for word in words(value)}
    if beyond := sorted(wanted - set(CAPABILITIES)):
        kept = ", ".join(CAPABILITIES)
        why = f"{', '.join(beyond)} is more than a sandbox may do ({kept})"
        file.refuse("services", name, "cap_add", why=why)


def _check_security(file: ComposeFile, name: str, value: object) -> None:
    for option in words(value):
        if not re.fullmatch(r"no-new-privileges(?:[:=]true)?", option):
            why = f"{option} takes away a wall of the sandbox"
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


def _check_hooks(file: ComposeFile, name: str, value: object) -> None:
    for hook in rows(value):
        if table(hook).get("privileged"):
            why = "a privileged hook is root on the host"
            file.refuse("services", name, "privileged", why=why)


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
                why = "trials run side by side, so addresses cannot be fixed"
                file.refuse("services", name, "networks", network, key, why=why)


def _check_mounts(file: ComposeFile, name: str, value: object) -> None:
    place = ("services", name, "volumes")
    for mount in map(table, rows(value)):
        kind, source = mount.get("type"), str(mount.get("source") or "")
        if kind not in ("bind", "volume", "tmpfs"):
            file.refuse(*place, why=f"a mount of type {kind}")
        if table(mount.get("volume")).get("subpath"):
            file.refuse(*place, "subpath", why="not supported here")
        if kind != "bind" or is_log_mount(source):
            continue
        if _SOCKETS.search(source):
            file.refuse(
                *place, why=f"{source}: whoever reaches the engine's socket is root on the host"
            )
        if table(mount.get("bind")).get("propagation"):
            file.refuse(*place, "propagation", why="mounts are not shared with the host")
        file.inside(source, *place)


def _check_networks(file: ComposeFile, networks: object) -> None:
    for name, network in tables(networks):
        for key, value in network.items():
            if key == "external" and value:
                file.refuse("networks", name, key, why="networks outside of the task are not used")
            if key == "driver" and value not in ("bridge", "default"):
                file.refuse("networks", name, key, why=f"{value} is not a network of its own")
            if key == "ipam" and table(value).get("config"):
                why = "trials run side by side, so addresses cannot be fixed"
                file.refuse("networks", name, key, why=why)
            if key == "driver_opts" and value:
                file.refuse("networks", name, key, why="not supported here")


def _check_volumes(file: ComposeFile, volumes: object) -> None:
    for name, volume in tables(volumes):
        for key, value in volume.items():
            if key == "external" and value:
                file.refuse("volumes", name, key, why="volumes outside of the task are not used")
            if key == "driver" and value != "local":
                file.refuse("volumes", name, key, why=f"{value} is not a driver of every engine")
            if key == "driver_opts" and value:
                file.refuse("volumes", name, key, why="it could mount folders of the host")


def _check_files(file: ComposeFile, kind: str, files: object) -> None:
    for name, entry in tables(files):
        if entry.get("file"):
            file.inside(str(entry["file"]), kind, name, "file")
        elif "content" not in entry:
            file.refuse(kind, name, why="only a file of the task, or content, can be given")


_CHECKS: Mapping[str, Callable[[ComposeFile, str, object], None]] = {
    "build": _check_build,
    "cap_add": _check_capabilities,
    "security_opt": _check_security,
    "network_mode": _check_network_mode,
    "ipc": _check_ipc,
    "post_start": _check_hooks,
    "pre_stop": _check_hooks,
    "deploy": _check_deploy,
    "depends_on": _check_depends,
    "networks": _check_service_networks,
    "volumes": _check_mounts,
}
