"""Backends made from the config by name, and the count of their live sandboxes."""

import contextlib
import os
import weakref
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from plimsoll.config.file import Config
from plimsoll.core.errors import SandboxUnsupported, UsageError
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import Backend, Image, ImageSource, OnOutput, Sandbox, SandboxSpec
from plimsoll.tasks.task import Task

__all__ = [
    "BACKENDS",
    "CountingBackend",
    "check_compose",
    "docker_extra",
    "docker_options",
    "make_backend",
]

if TYPE_CHECKING:
    from plimsoll.sandboxes.docker.options import DockerOptions


BACKENDS = {
    "local": "local sandboxes (namespaces, no daemon)",
    "docker": "Docker containers",
}
"""The backends by name, each with its display name."""


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
    """Reject tasks with several containers if this host has no Compose to start them with.

    Otherwise each of their trials would be void, and validation would blame the tasks.
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
    """Wrap imports of the docker backend: local runs need no HTTP client."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the docker backend needs the package {error.name}: pip install 'plimsoll-rl[docker]'"
        ) from None


def docker_options(config: Config) -> "DockerOptions":
    """The Docker options of the config."""
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


class CountingBackend:
    """A backend that counts its sandboxes for as long as they are referenced."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._sandboxes = weakref.WeakSet[Sandbox]()

    @property
    def alive(self) -> int:
        return len(self._sandboxes)

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def warnings(self) -> Sequence[str]:
        return self._backend.warnings

    async def __aenter__(self) -> Self:
        await self._backend.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._backend.__aexit__(exc_type, exc, traceback)

    async def build(self, source: ImageSource, *, on_output: OnOutput | None = None) -> Image:
        return await self._backend.build(source, on_output=on_output)

    async def create(self, image: Image, spec: SandboxSpec) -> Sandbox:
        sandbox = await self._backend.create(image, spec)
        self._sandboxes.add(sandbox)
        return sandbox
