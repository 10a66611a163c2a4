"""Tasks with a docker-compose.yaml: its service `main` is the sandbox, the others stand by it.

Compose V2 reads the file and starts the services; main itself is a container like that of any
other task, put into the project's networks. Those networks lead nowhere: not outside, and not
to the engine's host. Services have a way out only while the task's network policy is public,
by the run's own network.
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
"""Stands for the image that the task's own Dockerfile or docker_image gives."""
_CONFIG_SECONDS = 60.0
_KEEPS_NAMES_IN = 26
"""From this version on an engine does not resolve outside names for internal networks."""


@dataclass(frozen=True, slots=True)
class ComposeImage:
    """The images of a project, with its checked file."""

    key: str
    main: DockerImage
    file: ComposeFile
    model: Tree
    services: Mapping[str, str]
    """The image of each other service, as the engine has it."""
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
    """Builds and starts the compose projects of one engine."""

    def __init__(
        self, engine: Daemon, images: ImageStore, env: Mapping[str, str], runtime: str | None = None
    ) -> None:
        self._engine = engine
        self._images = images
        self._env = env
        self._runtime = runtime
        self._found: ComposeCommand | None = None
        self._left: list[ComposeProject] = []
        """Those that could not be removed when they were to."""

    async def compose(self) -> ComposeCommand:
        """Compose V2 on this host; `SandboxUnsupported` says how to get it."""
        if self._found is None:
            self._found = await asyncio.to_thread(find_compose, self._env)
        return self._found

    async def build(self, source: ImageSource, on_output: OnOutput | None = None) -> ComposeImage:
        """Check the file, and build or find the image of every service."""
        assert source.compose is not None
        file = ComposeFile.read(source.compose)
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
        """Start all services but main, in the network `public` where there is one."""
        model = image.model
        if "$" in image.file.text:
            variables = {**spec.env, **_variables(image.file, spec.limits)}
            model = await self._model(image.file, variables)
            check_model(image.file, model)
        layout = make_layout(
            LayoutRequest(
                file=image.file,
                model=model,
                project=f"plimsoll-{short_id()}",
                # A built image has labels of its own, which containers of it would take over.
                labels={**to_docker(spec.labels), SHARED: "no"},
                images=image.services,
                no_names=self._leaks_names() and spec.network.mode is not NetworkMode.PUBLIC,
                start_interval=self._engine.api >= (1, 44),
                cpus=(await self._engine.info()).cpus,
                runtime=self._runtime,
            )
        )
        compose = await self.compose() if layout.services else None
        project = ComposeProject(self._engine, compose, layout, image.main.reference, spec.labels)
        try:
            await project.start(public)
        except BaseException:
            await run_to_completion(self.discard(project, hurried=True))
            raise
        return project

    async def discard(self, project: ComposeProject, *, hurried: bool = False) -> None:
        """Remove a project that is not to be used; see `ComposeProject.remove`.

        What cannot be removed now, as while the engine is gone, is left to `sweep`.
        """
        try:
            await project.remove(hurried=hurried)
        except SandboxError as error:
            log.info("project %s is left for now: %s", project.name, error)
            self._left.append(project)

    async def sweep(self) -> None:
        """Try once more to remove what is left of projects."""
        for _ in range(len(self._left)):
            if self._left:  # others may do the same
                await run_to_completion(self.discard(self._left.pop(0)))

    async def close(self) -> None:
        """Remove what is left. Raises where that cannot be done."""
        await self.sweep()
        if self._left:
            names = ", ".join(project.name for project in self._left)
            raise SandboxUnavailable(
                f"services of the projects {names} are left on the Docker engine at "
                f"{self._engine.endpoint}"
            )

    def _leaks_names(self) -> bool:
        """Whether a container without a way out could still ask outside for names."""
        major = self._engine.version.version.partition(".")[0]
        return not major.isdigit() or int(major) < _KEEPS_NAMES_IN

    async def _model(self, file: ComposeFile, variables: Mapping[str, str]) -> Tree:
        """The file as Compose understands it, once it is known to read nothing outside."""
        raw = await self._config(
            file,
            variables,
            "--no-interpolate",
            "--no-normalize",
            "--no-consistency",
            "--no-path-resolution",
        )
        file.check_files_of_variables(raw)
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
                    endpoint=self._engine.endpoint,
                    env={**_own_variables(file), **variables},
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
                f"{file.path}: main has no image: give it one here, or add a Dockerfile beside it"
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
        place = ("services", name, "build")
        context = file.inside(unescape(build.get("context") or "."), *place)
        dockerfile = context / unescape(build.get("dockerfile") or "Dockerfile")
        args = table(build.get("args"))
        order = BuildRequest(
            context=context,
            dockerfile=file.inside(str(dockerfile), *place, "dockerfile"),
            timeout=source.build_timeout,
            supplies=source.supplies,
            args={key: unescape(value) for key, value in args.items() if value is not None},
            target=unescape(build.get("target") or ""),
        )
        return await self._images.build_order(order, on_output)


def _own_variables(file: ComposeFile) -> dict[str, str]:
    """Variables of the task's own `.env` are read only where that is a file of the task."""
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
    """Names all that a project's file systems are made of."""
    sums = hashlib.sha256(json.dumps([model, main, others], sort_keys=True).encode())
    for _, service in tables(model.get("services")):
        if not service.get("volumes"):
            continue
        # Files of the folder may be mounted: which ones does not matter for a name.
        for folder, folders, names in os.walk(file.folder):
            folders.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                if path == file.path:
                    continue
                info = path.lstat()
                told = f"{path.relative_to(file.folder)} {info.st_size} {info.st_mtime_ns}\n"
                sums.update(os.fsencode(told))
        break
    return f"compose-{sums.hexdigest()}"
