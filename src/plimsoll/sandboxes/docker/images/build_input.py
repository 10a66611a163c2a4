"""The input of a build: the Dockerfile as sent to the daemon, and the context.

After each FROM of an image come a label and the supplies. The classic builder cannot mount, so
supplies are copied in; the mounts of the running sandbox cover the copies. Inserted lines are
mapped back, so that an error names the line of the task's own file.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plimsoll.core.errors import BuildError, TaskError
from plimsoll.sandboxes.docker.files.tar_stream import (
    Entry,
    Tar,
    add_text,
    add_tree,
    sorted_entries,
)
from plimsoll.sandboxes.protocol import Supplies
from plimsoll.tasks.dockerfile.dockerignore import IgnoreRules
from plimsoll.tasks.dockerfile.parser import Instruction, parse_dockerfile
from plimsoll.tasks.dockerfile.words import expand_words, parse_arg, parse_pairs

__all__ = [
    "BUILD_LABEL",
    "DOCKERFILE",
    "BaseImage",
    "BuildContext",
    "BuildDockerfile",
    "RenderedDockerfile",
    "ignore_file",
    "quoted",
]

BUILD_LABEL = "plimsoll.build"
"""Label of every image that a build leaves, including those of a failed build."""

_SYNTAX = re.compile(r"^#\s*syntax\s*=\s*(\S+)", re.IGNORECASE)
_PLAIN_SYNTAX = re.compile(r"(docker\.io/)?docker/dockerfile(:|$)")
_CLASSIC_FLAGS = {
    "ADD": {"chown"},
    "COPY": {"chown", "from"},
    "FROM": {"platform"},
    "HEALTHCHECK": {"interval", "timeout", "start-period", "retries"},
}
_GIT = re.compile(r"git@|git://|https?://\S+\.git(#|$)")
_PLATFORM_ARGS = re.compile(r"\b(?:BUILD|TARGET)(?:PLATFORM|OS|ARCH|VARIANT)\b")


@dataclass(frozen=True, slots=True)
class BaseImage:
    """An image that a Dockerfile starts from or copies from."""

    name: str
    at: Instruction
    platform: str = ""


@dataclass(frozen=True, slots=True)
class RenderedDockerfile:
    """A Dockerfile as sent to the daemon, with the source instruction of each step."""

    text: str
    steps: tuple[Instruction | None, ...]
    lines: tuple[int, ...]
    """For each line of the text, the line of the task's file that it is or follows."""
    escape: str

    def labelled(self, labels: Mapping[str, str]) -> str:
        """The text with labels on its result, in one instruction because each costs time."""
        pairs = (f"{key}={quoted(value, self.escape)}" for key, value in labels.items())
        return f"{self.text}\nLABEL {' '.join(pairs)}\n"


@dataclass(slots=True)
class _Insertions:
    """Inserted instructions, by the line that they follow."""

    after: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def add(self, line: int, *texts: str) -> None:
        self.after.setdefault(line, []).extend(texts)


class BuildDockerfile:
    """A parsed Dockerfile, to be built for a platform such as linux/amd64."""

    def __init__(
        self,
        text: str,
        file: str,
        platform: str,
        args: Mapping[str, str] | None = None,
        target: str = "",
    ) -> None:
        """`target` names the stage to build; later stages are left out."""
        self.file = file
        try:
            parsed = parse_dockerfile(text, file)
            self._lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
            self._instructions = _up_to(parsed.instructions, target, file)
            del self._lines[self._instructions[-1].end_line :]
            self._escape = parsed.escape
            self._platforms = _platform_args(platform)
            self.args = {**self._declared(), **(args or {})}
            self._stages: dict[int, str] = {}
            """The base image of each FROM by line; "" if the base is a stage."""
            self.images = tuple(self._find_images())
        except TaskError as error:
            raise BuildError(str(error)) from None

    def where(self, instruction: Instruction) -> str:
        return f"{self.file}:{instruction.line}"

    def buildkit_feature(self) -> str:
        """The first feature that needs BuildKit, with its line; "" if there is none."""
        for number, line in enumerate(self._lines, start=1):
            if not line.startswith("#"):
                break
            syntax = _SYNTAX.match(line)
            if syntax and not _PLAIN_SYNTAX.match(syntax[1]):
                return f"{self.file}:{number}: # syntax={syntax[1]}"
        for instruction in self._instructions:
            if feature := _buildkit_feature(instruction):
                return f"{self.where(instruction)}: {feature}"
        return ""

    def render(self, supplies: Supplies, assets: str) -> RenderedDockerfile:
        """The Dockerfile with the label and the supplies, copied from the image `assets`."""
        lines = _Insertions()
        mark = f"LABEL {BUILD_LABEL}=yes"
        supplied = [mark, *self._supply(supplies, assets)]
        for instruction in self._instructions:
            line = instruction.end_line
            if instruction.keyword == "FROM":
                base = self._stages[instruction.line]
                lines.add(line, *([mark] if base in ("", "scratch") else supplied))
            elif supplies.path and self._sets_path(instruction):
                lines.add(line, f"ENV PATH={supplies.path}:$PATH")
        first = self._instructions[0].line - 1
        lines.add(first, *(f"ARG {key}={value}" for key, value in self._global_args()))
        return self._joined(lines)

    def _joined(self, lines: _Insertions) -> RenderedDockerfile:
        text: list[str] = []
        origins: list[int] = []
        for number, line in enumerate(["", *self._lines]):
            more = ([line] if number else []) + lines.after.get(number, [])
            text += more
            origins += [number] * len(more)
        steps: list[Instruction | None] = []
        for instruction in self._instructions:
            if instruction is self._instructions[0]:
                steps += [None] * len(lines.after.get(instruction.line - 1, []))
            steps += [instruction, *([None] * len(lines.after.get(instruction.end_line, [])))]
        return RenderedDockerfile("\n".join(text), tuple(steps), tuple(origins), self._escape)

    def _supply(self, supplies: Supplies, assets: str) -> Iterator[str]:
        for number, mount in enumerate(supplies.mounts):
            source = f"/{number}/" if mount.source.is_dir() else f"/{number}/{mount.source.name}"
            target = f"{mount.target.rstrip('/')}/" if mount.source.is_dir() else mount.target
            yield f'COPY --from={assets} ["{source}", "{target}"]'
        pairs = [f"{key}={quoted(value, self._escape)}" for key, value in supplies.env.items()]
        pairs += [f"PATH={supplies.path}:$PATH"] if supplies.path else []
        if pairs:
            yield f"ENV {' '.join(pairs)}"

    def _sets_path(self, instruction: Instruction) -> bool:
        if instruction.keyword != "ENV":
            return False
        pairs = parse_pairs(instruction.args, self._escape, self.where(instruction))
        return any(key == "PATH" for key, _ in pairs)

    def _declared(self) -> dict[str, str]:
        """Values of the platform ARGs that the file declares; BuildKit defines them itself."""
        found: dict[str, str] = {}
        for instruction in self._instructions:
            if instruction.keyword == "ARG":
                pairs = parse_arg(instruction.args, self._escape, self.where(instruction))
                names = [key for key, default in pairs if default is None]
                found |= {key: self._platforms[key] for key in names if key in self._platforms}
        return found

    def _global_args(self) -> list[tuple[str, str]]:
        """The platform variables that FROM instructions use without an ARG."""
        starts = [x for x in self._instructions if x.keyword == "FROM"]
        text = " ".join(f"{start.args} {start.flag('platform') or ''}" for start in starts)
        names = sorted(set(_PLATFORM_ARGS.findall(text)) - self.args.keys())
        return [(name, self._platforms[name]) for name in names]

    def _find_images(self) -> Iterator[BaseImage]:
        values = dict(self._platforms)
        stages: list[str] = []
        started = False
        for instruction in self._instructions:
            source = instruction.flag("from") or ""
            if instruction.keyword == "FROM":
                started = True
                yield from self._start(instruction, values, stages)
            elif instruction.keyword == "ARG" and not started:
                values |= self._global_arg(instruction, values)
            elif source and source.lower() not in stages and not source.isdigit():
                yield BaseImage(source, instruction)

    def _global_arg(self, instruction: Instruction, values: Mapping[str, str]) -> dict[str, str]:
        where = self.where(instruction)
        found: dict[str, str] = {}
        for key, default in parse_arg(instruction.args, self._escape, where):
            if key in self.args:
                found[key] = self.args[key]
            elif default is not None:
                found[key] = expand_words(default, values, self._escape, where)
        return found

    def _start(
        self, instruction: Instruction, values: Mapping[str, str], stages: list[str]
    ) -> Iterator[BaseImage]:
        """Yield the base image of a FROM unless it is an earlier stage; record its own stage."""
        where, words = self.where(instruction), instruction.args.split()
        base = expand_words(words[0], values, self._escape, where)
        if not base:
            raise BuildError(f"{where}: FROM {words[0]} names no image")
        is_stage = base.lower() in stages
        self._stages[instruction.line] = "" if is_stage else base
        if len(words) == 3:
            stages.append(words[2].lower())
        if not is_stage and base != "scratch":
            platform = expand_words(instruction.flag("platform") or "", values, self._escape, where)
            yield BaseImage(base, instruction, platform)


def quoted(text: str, escape: str = "\\") -> str:
    """A quoted word of an instruction, with this literal text."""
    for special in (escape, '"', "$"):
        text = text.replace(special, escape + special)
    return f'"{text}"'


def _up_to(
    instructions: tuple[Instruction, ...], target: str, file: str
) -> tuple[Instruction, ...]:
    """The instructions up to the end of a stage."""
    if not target:
        return instructions
    starts = [n for n, x in enumerate(instructions) if x.keyword == "FROM"]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
        name = instructions[start].args.split()[-1].lower()
        if target.lower() == name or target == str(number):
            return instructions[:end]
    raise BuildError(f"{file}: there is no stage {target} to build")


def _buildkit_feature(instruction: Instruction) -> str:
    keyword = instruction.keyword
    for flag in instruction.flags:
        if flag.name not in _CLASSIC_FLAGS.get(keyword, set()):
            return f"{keyword} --{flag.name}"
    if instruction.heredocs:
        return f"{keyword} <<{instruction.heredocs[0].name}"
    if keyword == "ADD" and any(_GIT.match(word) for word in instruction.args.split()):
        return "ADD of a git repository"
    return ""


def _platform_args(platform: str) -> dict[str, str]:
    system, _, machine = platform.partition("/")
    parts = {"PLATFORM": platform, "OS": system, "ARCH": machine, "VARIANT": ""}
    return {f"{side}{name}": v for side in ("BUILD", "TARGET") for name, v in parts.items()}


DOCKERFILE = ".plimsoll.Dockerfile"
"""The name of the Dockerfile in the context that is sent."""
_IGNORE = ".dockerignore"

_FileState = tuple[str, int, int, int, int]
_digests: dict[_FileState, bytes] = {}
"""Digests of files by path, inode, size and times: the trials of a group hash a context once."""
_MAX_DIGESTS = 100_000


def ignore_file(context: Path, dockerfile: Path) -> Path:
    """The `.dockerignore` of a Dockerfile: its own, or the context's."""
    own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    return own if own.is_file() else context / _IGNORE


class BuildContext:
    """The folder that a Dockerfile copies from. Its methods read files: call them in a thread."""

    def __init__(self, folder: Path, dockerfile: Path) -> None:
        self._folder = folder
        self._rules = IgnoreRules.from_file(ignore_file(folder, dockerfile))

    def entries(self) -> Iterator[Entry]:
        """The files and folders that `.dockerignore` keeps, in a stable order."""
        return self._below(self._folder, "")

    def digest(self) -> str:
        """A digest of the names, modes, links and contents."""
        sums = hashlib.sha256()
        for name, path in self.entries():
            info = path.lstat()
            kind = f"{stat.S_IFMT(info.st_mode)} {info.st_mode & 0o7777}".encode()
            for part in (os.fsencode(name), kind, _content(path, info)):
                sums.update(len(part).to_bytes(8, "big") + part)
        return sums.hexdigest()

    def write(self, tar: Tar, dockerfile: str) -> None:
        """Write the context and the Dockerfile into a tar.

        The Dockerfile's name is added to `.dockerignore`, so that `COPY . .` does not copy it.
        """
        others = (entry for entry in self.entries() if entry[0] not in (_IGNORE, DOCKERFILE))
        add_tree(tar, others)
        file = self._folder / _IGNORE
        if file.is_file() and not self._rules.ignored(_IGNORE):
            own = file.read_bytes() + b"\n"
        else:
            own = f"{_IGNORE}\n".encode()
        add_text(tar, _IGNORE, own + f"{DOCKERFILE}\n".encode())
        add_text(tar, DOCKERFILE, dockerfile.encode())

    def _below(self, folder: Path, prefix: str) -> Iterator[Entry]:
        for entry in sorted_entries(folder):
            name, path = prefix + entry.name, Path(entry.path)
            ignored = self._rules.ignored(name)
            if not ignored:
                yield name, path
            # An exception may include a file of an ignored folder.
            if entry.is_dir(follow_symlinks=False) and (not ignored or self._rules.has_exceptions):
                yield from self._below(path, f"{name}/")


def _content(path: Path, info: os.stat_result) -> bytes:
    if stat.S_ISLNK(info.st_mode):
        return os.fsencode(path.readlink())
    if not stat.S_ISREG(info.st_mode):
        return b""
    values = (str(path), info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    if values not in _digests:
        if len(_digests) >= _MAX_DIGESTS:
            _digests.clear()
        with path.open("rb") as file:
            _digests[values] = hashlib.file_digest(file, "sha256").digest()
    return _digests[values]
