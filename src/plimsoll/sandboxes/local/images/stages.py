"""The stages of a Dockerfile, and the expansion of variables in its instructions."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.local.images.image import LocalImage
from plimsoll.tasks.dockerfile.parser import Dockerfile, Instruction
from plimsoll.tasks.dockerfile.words import expand_words, parse_arg

__all__ = ["DockerfileStages", "Stage", "StageState"]

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def _platform() -> str:
    machine = os.uname().machine
    return f"linux/{_MACHINES.get(machine, machine)}"


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM and the instructions after it."""

    name: str | None
    image: str
    """The name of an image or an earlier stage, with variables expanded."""
    start: Instruction
    body: tuple[Instruction, ...]


@dataclass(slots=True)
class StageState:
    """The state of a stage during its build."""

    image: LocalImage
    args: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def variables(self) -> dict[str, str]:
        """The variables of an instruction. ENV overrides ARG, as in Docker."""
        return {**self.args, **self.image.env}

    def change(self, **fields: object) -> None:
        self.image = replace(self.image, **fields)  # type: ignore[arg-type]


class DockerfileStages:
    """A Dockerfile, split into stages."""

    def __init__(self, dockerfile: Dockerfile, file: str) -> None:
        self.file = file
        self.escape = dockerfile.escape
        self.global_args = _platform_args()
        self.stages: list[Stage] = []
        self._split(dockerfile.instructions)

    def where(self, instruction: Instruction) -> str:
        return f"{self.file}:{instruction.line}"

    def expand(
        self,
        text: str,
        variables: Mapping[str, str],
        instruction: Instruction,
        *,
        keep_quotes: bool = False,
    ) -> str:
        where = self.where(instruction)
        return expand_words(text, variables, self.escape, where, keep_quotes=keep_quotes)

    def number(self, name: str, before: int) -> int | None:
        """The number of an earlier stage, by name or number. None if there is none."""
        for number, stage in enumerate(self.stages[:before]):
            if name.lower() == (stage.name or "").lower() or name == str(number):
                return number
        return None

    def _split(self, instructions: tuple[Instruction, ...]) -> None:
        starts = [n for n, x in enumerate(instructions) if x.keyword == "FROM"]
        for argument in instructions[: starts[0]]:
            for key, default in parse_arg(argument.args, self.escape, self.where(argument)):
                if default is not None:
                    self.global_args[key] = self.expand(default, self.global_args, argument)
        for start, end in zip(starts, [*starts[1:], len(instructions)], strict=True):
            first = instructions[start]
            self._check_flags(first)
            words = first.args.split()
            image = self.expand(words[0], self.global_args, first)
            if not image:
                raise BuildError(f"{self.where(first)}: FROM {words[0]} is empty after expansion")
            self.stages.append(
                Stage(
                    name=words[2] if len(words) == 3 else None,
                    image=image,
                    start=first,
                    body=instructions[start + 1 : end],
                )
            )

    def _check_flags(self, first: Instruction) -> None:
        for flag in first.flags:
            if flag.name != "platform":
                problem = f"the local backend does not support --{flag.name}"
                raise BuildError(f"{self.where(first)}: {problem}")
        platform = self.expand(first.flag("platform") or "", self.global_args, first)
        if platform and platform.split("/")[:2] != _platform().split("/"):
            problem = f"platform {platform} cannot run on this {_platform()} host"
            raise BuildError(f"{self.where(first)}: {problem}")


def _platform_args() -> dict[str, str]:
    """The predefined ARGs of Docker."""
    system, _, machine = _platform().partition("/")
    parts = {"PLATFORM": _platform(), "OS": system, "ARCH": machine, "VARIANT": ""}
    return {f"{side}{name}": v for side in ("BUILD", "TARGET") for name, v in parts.items()}
