"""Builds and starts compose projects. The service `main` is the sandbox, the others run beside it.

Compose V2 reads the file and starts the services. Main is a container like that of any other task,
connected to the project's networks. These have no route outside, nor to the daemon's host.
Services have a route outside only while the network policy is public, through the run's network.
"""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import BuildError, SandboxError, SandboxUnavailable
from plimsoll.core.ids import short_id
from plimsoll.core.permissions import NetworkMode
from plimsoll.sandboxes.docker.compose.compose_command import (
    ComposeCommand,
    ComposeError,
    find_compose,
)
from plimsoll.sandboxes.docker.compose.compose_file import (
    ComposeFile,
    Tree,
    table,
    tables,
)
from plimsoll.sandboxes.docker.compose.layout import LayoutRequest, make_layout, unescape
from plimsoll.sandboxes.docker.compose.project import ComposeProject
from plimsoll.sandboxes.docker.compose.rules import HOST_LOGS, MAIN, check_model
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.images.builder import BuildRequest
from plimsoll.sandboxes.docker.images.image_store import DockerImage, ImageStore
from plimsoll.sandboxes.docker.labels import SHARED, to_docker
from plimsoll.sandboxes.host.temporary import temporary_folder
from plimsoll.sandboxes.protocol import ImageSource, Limits, OnOutput, SandboxSpec

__all__ = ["ComposeImage", "ComposeLauncher"]

log = logging.getLogger(__name__)

_MAIN_IMAGE = "plimsoll-main"
"""Placeholder for the image of the task's own Dockerfile or docker_image."""
_CONFIG_SECONDS = 60.0
_ISOLATES_NAMES_SINCE = 26
"""First daemon version that does not resolve outside names in internal networks."""


@dataclass(frozen=True, slots=True)
class ComposeImage:
    """The images of a compose project, with its checked file."""

    key: str
    main: DockerImage
    file: ComposeFile
    model: Tree
    services: Mapping[str, str]
    """The image of each other service, as a reference for the daemon."""
    warnings: tuple[str, ...]

    @property
    def env(self) -> Mapping[str, str]:
        return self.main.env

    @property
    def workdir(self) -> str:
        return self.main.workdir

    @property
    def user(self) -> str:
        return self.main.user


class ComposeLauncher:
    """Builds the images of compose projects and starts them on one daemon."""

    def __init__(
        self, daemon: Daemon, images: ImageStore, env: Mapping[str, str], runtime: str | None = None
    ) -> None:
        self._daemon = daemon
        self._images = images
        self._env = env
        self._runtime = runtime
        self._command: ComposeCommand | None = None
        self._unremoved: list[ComposeProject] = []
        """Projects that could not be removed."""

    async def compose(self) -> ComposeCommand:
        """Compose V2 on this host. Raises `SandboxUnsupported` with how to install it."""
        if self._command is None:
            self._command = await asyncio.to_thread(find_compose, self._env)
        return self._command

    async def build(self, source: ImageSource, on_output: OnOutput | None = None) -> ComposeImage:
        """Check the file, then build or find the image of every service."""
        assert source.compose is not None
        file = await asyncio.to_thread(ComposeFile.read, source.compose)
        model = await self._model(file, _variables(file, Limits()))
        warnings = check_model(file, model)
        if on_output is not None and warnings:
            on_output("stderr", "".join(f"{warning}\n" for warning in warnings).encode())
        services = dict(tables(model.get("services")))
        main = await self._main_image(source, file, services[MAIN], on_output)
        others: dict[str, str] = {}
        for name, service in services.items():
            if name != MAIN:
                image = await self._image(source, file, name, service, on_output)
                others[name] = image.reference
        key = _key(file, model, main.key, others)
        return ComposeImage(key, main, file, model, others, tuple(warnings))

    async def start(
        self, image: ComposeImage, spec: SandboxSpec, *, public: str | None
    ) -> ComposeProject:
        """Start all services except main, connected to the network `public` if given."""
        model = image.model
        if image.file.has_variables:
            variables = {**spec.env, **_variables(image.file, spec.limits)}
            model = await self._model(image.file, variables)
            check_model(image.file, model)
        layout = make_layout(
            LayoutRequest(
                file=image.file,
                model=model,
                project=f"plimsoll-{short_id()}",
                # Containers inherit the labels of a built image, so they are overridden.
                labels={**to_docker(spec.labels), SHARED: "no"},
                images=image.services,
                block_names=self._resolves_outside_names()
                and spec.network.mode is not NetworkMode.PUBLIC,
                start_interval=self._daemon.api >= (1, 44),
                cpus=(await self._daemon.info()).cpus,
                runtime=self._runtime,
            )
        )
        compose = await self.compose() if layout.services else None
        project = ComposeProject(self._daemon, compose, layout, image.main.reference, spec.labels)
        try:
            await project.start(public)
        except BaseException:
            await run_to_completion(self.discard(project, hurried=True))
            raise
        return project

    async def discard(self, project: ComposeProject, *, hurried: bool = False) -> None:
        """Remove a project; see `ComposeProject.remove`.

        A project that cannot be removed now, e.g. while the daemon restarts, is left to `sweep`.
        """
        try:
            await project.remove(hurried=hurried)
        except SandboxError as error:
            log.info("project %s could not be removed yet: %s", project.name, error)
            self._unremoved.append(project)

    async def sweep(self) -> None:
        """Retry the removal of projects."""
        for _ in range(len(self._unremoved)):
            if self._unremoved:  # sweeps may run concurrently
                await run_to_completion(self.discard(self._unremoved.pop(0)))

    async def close(self) -> None:
        """Remove the remaining projects. Raises if one cannot be removed."""
        await self.sweep()
        if self._unremoved:
            names = ", ".join(project.name for project in self._unremoved)
            raise SandboxUnavailable(
                f"services of the projects {names} could not be removed from the Docker daemon at "
                f"{self._daemon.endpoint}"
            )

    def _resolves_outside_names(self) -> bool:
        """Whether a container without a route outside can still resolve outside names."""
        major = self._daemon.version.version.partition(".")[0]
        return not major.isdigit() or int(major) < _ISOLATES_NAMES_SINCE

    async def _model(self, file: ComposeFile, variables: Mapping[str, str]) -> Tree:
        """The model that Compose makes of the file, after the check of its file references."""
        raw = await self._config(
            file,
            variables,
            "--no-interpolate",
            "--no-normalize",
            "--no-consistency",
            "--no-path-resolution",
        )
        file.check_variable_files(raw)
        return await self._config(file, variables)

    async def _config(self, file: ComposeFile, variables: Mapping[str, str], *options: str) -> Tree:
        compose = await self.compose()
        with temporary_folder() as folder:
            base = folder / "base.json"
            base.write_text(json.dumps({"services": {MAIN: {"image": _MAIN_IMAGE}}}))
            args = ("--project-name=plimsoll", f"--project-directory={file.folder.absolute()}")
            files = (f"--file={base}", f"--file={file.path.absolute()}")
            try:
                raw = await compose.run(
                    *args,
                    *files,
                    "config",
                    "--format=json",
                    *options,
                    endpoint=self._daemon.endpoint,
                    env={**_env_file_variables(file), **variables},
                    seconds=_CONFIG_SECONDS,
                )
                return msgspec.json.decode(raw, type=dict[str, object])
            except ComposeError as error:
                raise BuildError(f"{file.path}: {error}") from None

    async def _main_image(
        self, source: ImageSource, file: ComposeFile, service: Tree, on_output: OnOutput | None
    ) -> DockerImage:
        own = unescape(service.get("image") or "") not in ("", _MAIN_IMAGE)
        if source.reference is None and (own or service.get("build")):
            return await self._image(source, file, MAIN, service, on_output)
        if source.reference is None and source.dockerfile is None:
            raise BuildError(
                f"{file.path}: main has no image: set one here, or add a Dockerfile beside it"
            )
        return await self._images.build(source, on_output)

    async def _image(
        self,
        source: ImageSource,
        file: ComposeFile,
        name: str,
        service: Tree,
        on_output: OnOutput | None,
    ) -> DockerImage:
        build = table(service.get("build"))
        if not build:
            return await self._images.find(
                unescape(service["image"]), source.build_timeout, on_output
            )
        keys = ("services", name, "build")
        context = file.inside(unescape(build.get("context") or "."), *keys)
        dockerfile = context / unescape(build.get("dockerfile") or "Dockerfile")
        args = table(build.get("args"))
        request = BuildRequest(
            context=context,
            dockerfile=file.inside(str(dockerfile), *keys, "dockerfile"),
            timeout=source.build_timeout,
            supplies=source.supplies,
            args={key: unescape(value) for key, value in args.items() if value is not None},
            target=unescape(build.get("target") or ""),
        )
        return await self._images.build_request(request, on_output)


def _env_file_variables(file: ComposeFile) -> dict[str, str]:
    """Disable the `.env` file unless it is a file of the task."""
    env = file.folder / ".env"
    inside = env.is_file() and env.resolve().is_relative_to(file.folder.resolve())
    return {} if inside else {"COMPOSE_DISABLE_ENV_FILE": "true"}


def _variables(file: ComposeFile, limits: Limits) -> dict[str, str]:
    """The variables that compose files of the task format may use."""
    logs = {"VERIFIER_LOGS": "verifier", "AGENT_LOGS": "agent", "ARTIFACTS": "artifacts"}
    return {
        "MAIN_IMAGE_NAME": _MAIN_IMAGE,
        "PREBUILT_IMAGE_NAME": _MAIN_IMAGE,
        "CONTEXT_DIR": str(file.folder.absolute()),
        "TEST_DIR": "/tests",
        "CPUS": f"{limits.cpus or 0:g}",
        "MEMORY": f"{limits.memory_mb or 0}M",
        **{f"HOST_{name}_PATH": f"{HOST_LOGS}/{folder}" for name, folder in logs.items()},
        **{f"ENV_{name}_PATH": f"/logs/{folder}" for name, folder in logs.items()},
    }


def _key(file: ComposeFile, model: Tree, main: str, others: Mapping[str, str]) -> str:
    """A digest of everything that the project's file systems are made of."""
    sums = hashlib.sha256(json.dumps([model, main, others], sort_keys=True).encode())
    for _, service in tables(model.get("services")):
        if not service.get("volumes"):
            continue
        # Files of the folder may be mounted; hashing all of them is simpler than finding which.
        for folder, folders, names in os.walk(file.folder):
            folders.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                if path == file.path:
                    continue
                info = path.lstat()
                entry = f"{path.relative_to(file.folder)} {info.st_size} {info.st_mtime_ns}\n"
                sums.update(os.fsencode(entry))
        break
    return f"compose-{sums.hexdigest()}"
