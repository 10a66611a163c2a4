"""Which backend a name stands for, made from the config."""

import contextlib
import os
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.config.file import Config
from plimsoll.core.errors import SandboxUnsupported, UsageError
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.task import Task

if TYPE_CHECKING:
    from plimsoll.sandboxes.docker.options import DockerOptions

__all__ = ["BACKENDS", "check_compose", "docker_extra", "docker_options", "make_backend"]

BACKENDS = {
    "local": "local sandboxes (namespaces, no daemon)",
    "docker": "Docker containers",
}
"""The backends by name, each as it is introduced to a person."""


def make_backend(name: str, config: Config) -> Backend:
    """Make a backend. It starts nothing before it is entered."""
    match name:
        case "local":
            return LocalBackend(_local_options(config))
        case "docker":
            return _docker(config)
        case _:
            raise UsageError(f"no backend is called {name!r}: choose {', '.join(BACKENDS)}")


def check_compose(backend: str, tasks: Iterable[Task]) -> None:
    """Refuse tasks with several containers where this host has no Compose to start them with.

    Otherwise each of their trials would be void, and validation would take it for their fault.
    """
    names = [task.name for task in tasks if task.compose_file is not None]
    if backend != "docker" or not names:
        return
    with docker_extra():
        from plimsoll.sandboxes.docker.compose.compose_command import find_compose
    try:
        find_compose(os.environ)
    except SandboxUnsupported as error:
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        raise UsageError(f"nothing was run: {error}; {names[0]}{more} cannot run here") from None


def _local_options(config: Config) -> LocalOptions:
    local = config.local
    defaults = LocalOptions()
    return LocalOptions(
        roots={root: Path(folder) for root, folder in local.roots.items()},
        host_paths=defaults.host_paths if local.host_paths is None else local.host_paths,
        home=None if local.home is None else Path(local.home),
        allow_system_calls=frozenset(local.allow_system_calls),
        upper=local.upper,
        upper_mb=local.upper_mb,
    )


def _docker(config: Config) -> Backend:
    with docker_extra():
        from plimsoll.sandboxes.docker.backend import DockerBackend
    return DockerBackend(docker_options(config))


@contextlib.contextmanager
def docker_extra() -> Generator[None, None, None]:
    """Around imports of the docker backend: local runs need no HTTP client."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the docker backend needs the package {error.name}: pip install 'plimsoll-rl[docker]'"
        ) from None


def docker_options(config: Config) -> "DockerOptions":
    """What the config says about the engine."""
    with docker_extra():
        from plimsoll.sandboxes.docker.options import DockerOptions
    docker = config.docker
    return DockerOptions(
        host=docker.host,
        context=docker.context,
        certificates=None if docker.certificates is None else Path(docker.certificates),
        allow_plain=docker.allow_plain,
        dns=docker.dns,
        keep_images_gb=docker.keep_images_gb,
        keep_images_days=docker.keep_images_days,
        wait_seconds=docker.wait_seconds,
        runtime=docker.runtime,
    )
