"""Builds a task's Dockerfile into cached layers.

Each instruction that changes files makes a layer. Its key covers the text, the copied files, the
variables and the layer below, so a common beginning of two Dockerfiles is built once. Instructions
about running a container (CMD, EXPOSE, LABEL, STOPSIGNAL, MAINTAINER) have no effect, since
Plimsoll decides what runs in a sandbox. An unsupported instruction is an error that names the line.
As with `docker build`, RUN uses the host's network.
"""

import asyncio
import hashlib
import json
import posixpath
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from plimsoll.core.errors import (
    BuildError,
    SandboxUnavailable,
    SandboxUnsupported,
    TaskError,
    TransferError,
)
from plimsoll.core.ids import Labels
from plimsoll.core.permissions import NO_NETWORK, PUBLIC
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.images import copy_instructions
from plimsoll.sandboxes.local.images.base import Base
from plimsoll.sandboxes.local.images.context import BuildContext
from plimsoll.sandboxes.local.images.image import MAX_LAYERS, LayerCache, LocalImage
from plimsoll.sandboxes.local.images.stages import DockerfileStages, StageState
from plimsoll.sandboxes.local.sandbox import LocalSandbox
from plimsoll.sandboxes.protocol import ExecResult, ImageSource, OnOutput, SandboxSpec, Supplies
from plimsoll.tasks.dockerfile.parser import Instruction, parse_dockerfile
from plimsoll.tasks.dockerfile.words import parse_arg, parse_pairs

__all__ = ["Builder", "BuilderBackend"]

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SCRIPT = "/dev/shm/run"
"""The path of a RUN script. It is in memory, so no layer contains it."""
_NO_EFFECT = frozenset({"CMD", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL"})
_FLAGS = {"RUN": {"network"}, "COPY": {"from", "chown", "chmod", "link"},
          "ADD": {"chown", "chmod", "link"}}  # fmt: skip
_NETWORKS = ("default", "host", "none")
_FORMAT = "layer 3"
"""Part of every layer key. Change it when the builder makes layers differently."""


class BuilderBackend(Protocol):
    """The part of the backend that the builder uses."""

    def find_base(self, reference: str) -> Base: ...

    async def start(
        self, image: LocalImage, spec: SandboxSpec, *, durable: bool = False
    ) -> LocalSandbox: ...


class Builder:
    """Builds images for one backend."""

    def __init__(self, backend: BuilderBackend, home: Home) -> None:
        self._backend = backend
        self._layers = LayerCache(home)

    async def build(self, source: ImageSource, on_output: OnOutput | None) -> LocalImage:
        """Build an image, or reuse a cached one. Raises `BuildError` with the line at fault."""
        if source.compose is not None:
            raise SandboxUnsupported(
                f"{source.compose}: the local backend does not support compose services; "
                "use --backend docker"
            )
        if source.dockerfile is None:
            return _first_image(self._backend, source.reference or "the default image")
        file = str(source.dockerfile)
        try:
            text = await asyncio.to_thread(source.dockerfile.read_text, "utf-8")
            stages = DockerfileStages(parse_dockerfile(text, file), file)
            context = BuildContext(source.context or source.dockerfile.parent, source.dockerfile)
            work = _Build(self._backend, self._layers, stages, context, source, on_output)
            return await _within(source.build_timeout, work, stages)
        except TaskError as error:
            raise BuildError(str(error)) from None
        except UnicodeDecodeError:
            raise BuildError(f"{file}: not UTF-8 text") from None
        except OSError as error:
            raise BuildError(f"{error.filename or file}: {error.strerror}") from None


async def _within(seconds: float, work: "_Build", stages: DockerfileStages) -> LocalImage:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return (await work.stage(len(stages.stages) - 1)).image
    except TimeoutError:
        if not limit.expired():
            raise
        where = stages.where(work.at) if work.at else stages.file
        raise BuildError(
            f"{where}: the build took longer than {seconds:g} s (build_timeout_sec)"
        ) from None


def _first_image(backend: BuilderBackend, reference: str) -> LocalImage:
    return LocalImage(backend.find_base(reference), env={"PATH": _SYSTEM_PATH})


class _Build:
    """One build of one Dockerfile. Stages are built on demand."""

    def __init__(
        self,
        backend: BuilderBackend,
        layers: LayerCache,
        stages: DockerfileStages,
        context: BuildContext,
        source: ImageSource,
        on_output: OnOutput | None,
    ) -> None:
        self._backend = backend
        self._layers = layers
        self._stages = stages
        self._context = context
        self._supplies = source.supplies
        self._system_calls = source.system_calls
        self._on_output = on_output
        self._built: dict[int, StageState] = {}
        self.at: Instruction | None = None
        """The current instruction."""

    async def stage(self, number: int) -> StageState:
        if number not in self._built:
            stage = self._stages.stages[number]
            start = await self._start(stage.image, stage.start, number)
            # Stages that start from this one see its ARGs.
            state = StageState(start.image, dict(start.args))
            for instruction in stage.body:
                await self._apply(instruction, state, number)
            self._built[number] = state
        return self._built[number]

    async def _start(self, name: str, at: Instruction, before: int) -> StageState:
        """The final state of an earlier stage, or the initial state of an image."""
        earlier = self._stages.number(name, before)
        if earlier is not None:
            return await self.stage(earlier)
        if name.isdigit():
            raise self._error(at, f"there is no stage {name} before this one")
        try:
            return StageState(_first_image(self._backend, name))
        except (SandboxUnsupported, SandboxUnavailable) as error:
            raise self._error(at, str(error)) from None

    async def _apply(self, instruction: Instruction, state: StageState, number: int) -> None:
        keyword = instruction.keyword
        self.at = instruction
        self._check_flags(instruction)
        if keyword == "RUN":
            await self._run(instruction, state)
        elif keyword in ("COPY", "ADD"):
            await self._copy(instruction, state, number)
        elif keyword == "WORKDIR":
            await self._workdir(instruction, state)
        elif keyword == "ENV":
            self._env(instruction, state)
        elif keyword == "ARG":
            self._arg(instruction, state)
        elif keyword == "USER":
            state.change(user=self._expand(instruction.args, instruction, state))
        elif keyword == "SHELL":
            state.change(shell=instruction.json_form or ())
        elif keyword not in _NO_EFFECT:
            raise self._error(instruction, f"the local backend does not support {keyword}")

    def _check_flags(self, instruction: Instruction) -> None:
        supported = _FLAGS.get(instruction.keyword, set())
        for flag in instruction.flags:
            if flag.name not in supported:
                raise self._error(instruction, f"the local backend does not support --{flag.name}")

    def _error(self, instruction: Instruction, problem: str) -> BuildError:
        return BuildError(f"{self._stages.where(instruction)}: {problem}")

    def _expand(self, text: str, instruction: Instruction, state: StageState) -> str:
        return self._stages.expand(text, state.variables, instruction)

    def _env(self, instruction: Instruction, state: StageState) -> None:
        where = self._stages.where(instruction)
        pairs = parse_pairs(instruction.args, self._stages.escape, where)
        # All values of one ENV use the variables as they were before it.
        values = {key: self._expand(value, instruction, state) for key, value in pairs}
        state.change(env={**state.image.env, **values})

    def _arg(self, instruction: Instruction, state: StageState) -> None:
        where = self._stages.where(instruction)
        for key, default in parse_arg(instruction.args, self._stages.escape, where):
            if default is not None:
                state.args[key] = self._expand(default, instruction, state)
            elif key in self._stages.global_args:
                state.args[key] = self._stages.global_args[key]

    async def _workdir(self, instruction: Instruction, state: StageState) -> None:
        path = self._expand(instruction.args, instruction, state)
        folder = posixpath.normpath(posixpath.join(state.image.workdir, path))

        async def make(sandbox: LocalSandbox) -> None:
            await copy_instructions.make_folder(sandbox, folder, state.image.user)

        await self._layer(instruction, state, [folder, state.image.user], make)
        state.change(workdir=folder)

    async def _run(self, instruction: Instruction, state: StageState) -> None:
        argv, script = _command(instruction, state.image.shell)
        env = self._supplies.env_over({**state.args, **state.image.env})
        network = instruction.flag("network") or "default"
        if network not in _NETWORKS:
            raise self._error(instruction, f"--network is one of {', '.join(_NETWORKS)}")
        without_network = network == "none"

        async def run(sandbox: LocalSandbox) -> None:
            await sandbox.set_network(NO_NETWORK if without_network else PUBLIC)
            if script:
                await copy_instructions.put_text(sandbox, script, _SCRIPT, "run", 0o755)
            done = await sandbox.exec(argv, env=env, on_output=self._on_output)
            self._check_success(done, instruction)

        image = state.image
        command = json.dumps([argv, script])
        seen = [command, json.dumps(env, sort_keys=True), image.user, image.workdir]
        await self._layer(
            instruction, state, [*seen, str(without_network), self._supplies.key], run
        )

    def _check_success(self, done: ExecResult, instruction: Instruction) -> None:
        if not done.ok:
            text = f"{instruction.keyword} {' '.join(instruction.args.split())[:120]}"
            raise self._error(instruction, f"{text} {done.complaint()}")

    async def _copy(self, instruction: Instruction, state: StageState, number: int) -> None:
        copy_spec = copy_instructions.parse_copy(
            instruction, self._stages, state, add=instruction.keyword == "ADD"
        )
        if copy_spec.stage is not None:
            source = (await self._start(copy_spec.stage, instruction, number)).image
            self.at = instruction
            seen = [source.key, *copy_spec.sources]

            async def copy(sandbox: LocalSandbox) -> None:
                other = await self._backend.start(source, _spec(Supplies()))
                try:
                    await copy_instructions.copy_from_stage(other, sandbox, copy_spec)
                finally:
                    await other.close()

        else:
            plan = await asyncio.to_thread(copy_instructions.plan_copy, copy_spec, self._context)
            seen = plan.digests

            async def copy(sandbox: LocalSandbox) -> None:
                await copy_instructions.copy_from_context(plan, sandbox)

        key_parts = [copy_spec.target, str(copy_spec.owner), str(copy_spec.mode), *seen]
        await self._layer(instruction, state, key_parts, copy)

    async def _layer(
        self,
        instruction: Instruction,
        state: StageState,
        seen: list[str],
        work: Callable[[LocalSandbox], Awaitable[None]],
    ) -> None:
        """Add the layer that `work` makes, or the cached one."""
        if len(state.image.layers) == MAX_LAYERS:
            problem = f"the local backend stacks at most {MAX_LAYERS} layers"
            raise self._error(instruction, f"{problem}: join RUN and COPY instructions")
        parts = [_FORMAT, state.image.key, instruction.keyword, *seen]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

        async def make(path: Path) -> None:
            self._print(f"{instruction.keyword} {instruction.args}\n")
            try:
                spec = _spec(self._supplies, self._system_calls)
                sandbox = await self._backend.start(state.image, spec, durable=True)
            except BuildError as error:
                raise self._error(instruction, str(error)) from None
            try:
                await work(sandbox)
                sandbox.keep_as(path)
            except (SandboxUnsupported, TransferError) as error:
                raise self._error(instruction, str(error)) from None
            finally:
                await sandbox.close()

        await self._layers.ensure(key, make)
        state.change(layers=(*state.image.layers, key))

    def _print(self, text: str) -> None:
        if self._on_output is not None:
            self._on_output("stdout", text.encode())


def _command(instruction: Instruction, shell: tuple[str, ...]) -> tuple[list[str], str]:
    """The argv of a RUN, and the text of its script if it has one."""
    if instruction.json_form is not None:
        return list(instruction.json_form), ""
    heredocs = instruction.heredocs
    if len(heredocs) == 1 and len(instruction.args.split()) == 1:
        body = heredocs[0].body
        return ([_SCRIPT], body) if body.startswith("#!") else ([*shell, body], "")
    # The shell reads heredocs after a command itself.
    texts = "".join(f"\n{heredoc.body}{heredoc.name}" for heredoc in heredocs)
    return [*shell, instruction.args + texts], ""


def _spec(supplies: Supplies, system_calls: tuple[str, ...] = ()) -> SandboxSpec:
    labels = Labels(run="build", ticket="build", owner=this_process(), expires=time.time() + 86400)
    return SandboxSpec(labels, network=NO_NETWORK, supplies=supplies, system_calls=system_calls)
