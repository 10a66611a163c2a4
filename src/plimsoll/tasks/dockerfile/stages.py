"""Build stages of a Dockerfile: the scripts they run and the files they add to the image."""

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plimsoll.core.errors import TaskError
from plimsoll.tasks.dockerfile.parser import Dockerfile, Instruction, parse_dockerfile
from plimsoll.tasks.dockerfile.words import parse_arg, parse_pairs, raw_words, unquote
from plimsoll.tasks.shell.options import expand, join_path
from plimsoll.tasks.shell.parser import parse_script
from plimsoll.tasks.shell.syntax import Script
from plimsoll.tasks.text_files import read_text

__all__ = ["Copy", "DockerfileBuild", "RemoteAdd", "RunScript", "Stage", "read_build"]


@dataclass(frozen=True, slots=True)
class RunScript:
    """A RUN instruction as a script, with its working directory and variables."""

    script: Script
    cwd: str
    env: dict[str, str]
    pipefail: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """A COPY from the context, or from another stage or image."""

    sources: tuple[str, ...]
    target: str
    stage: str | None


@dataclass(frozen=True, slots=True)
class RemoteAdd:
    """An ADD of a remote URL or repository."""

    url: str
    target: str
    line: int


@dataclass(slots=True, eq=False)
class Stage:
    """One FROM and the instructions that follow it."""

    base: str
    name: str | None
    runs: list[RunScript] = field(default_factory=list["RunScript"])
    copies: list[Copy] = field(default_factory=list["Copy"])
    additions: list[RemoteAdd] = field(default_factory=list["RemoteAdd"])
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict[str, str])
    shell: tuple[str, ...] = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class DockerfileBuild:
    """The stages of a Dockerfile, or the problem that prevents parsing it."""

    file: str
    context: Path
    stages: tuple[Stage, ...]
    problem: str | None

    @property
    def chain(self) -> tuple[Stage, ...]:
        """The stages that the final image is built from, base first."""
        chain: list[Stage] = []
        stage = self.stages[-1] if self.stages else None
        while stage is not None and stage not in chain:
            chain.insert(0, stage)
            stage = self._stage(stage.base, before=stage)
        return tuple(chain)

    def _stage(self, name: str, before: Stage) -> Stage | None:
        earlier = self.stages[: self.stages.index(before)]
        return next((one for one in reversed(earlier) if one.name == name.lower()), None)


def read_build(path: Path, context: Path, file: str) -> DockerfileBuild:
    """Read a Dockerfile. If it cannot be parsed, the build has no stages and a problem."""
    text = read_text(path)
    if text is None:
        return DockerfileBuild(file, context, (), f"{file}: cannot be read")
    try:
        parsed = parse_dockerfile(text, file)
    except TaskError as error:
        return DockerfileBuild(file, context, (), str(error))
    return DockerfileBuild(file, context, tuple(_stages(parsed, text)), None)


def _stages(parsed: Dockerfile, text: str) -> Iterator[Stage]:
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    before: dict[str, str] = {}
    stages: list[Stage] = []
    for instruction in parsed.instructions:
        if instruction.keyword == "ARG" and not stages:
            before |= _args(instruction, parsed.escape)
        elif instruction.keyword == "FROM":
            stages.append(_stage(instruction, before, stages))
        else:
            _apply(stages[-1], instruction, lines, parsed.escape, before)
    yield from stages


def _stage(instruction: Instruction, env: dict[str, str], earlier: Sequence[Stage]) -> Stage:
    base, *rest = instruction.args.split()
    base = expand(base, env)
    stage = Stage(base, rest[1].lower() if len(rest) == 2 else None)
    below = next((one for one in reversed(earlier) if one.name == base.lower()), None)
    if below is not None:
        stage.workdir, stage.env, stage.shell = below.workdir, dict(below.env), below.shell
    return stage


def _apply(
    stage: Stage, instruction: Instruction, lines: Sequence[str], escape: str, outer: dict[str, str]
) -> None:
    args = instruction.args
    match instruction.keyword:
        case "WORKDIR":
            stage.workdir = join_path(stage.workdir, expand(unquote(args).strip(), stage.env))
        case "ENV":
            for name, value in _pairs(args, escape):
                stage.env[name] = expand(unquote(value), stage.env)
        case "ARG":
            for name, value in _args(instruction, escape).items():
                stage.env.setdefault(name, expand(value, {**outer, **stage.env}))
        case "SHELL":
            stage.shell = instruction.json_form or stage.shell
        case "RUN":
            stage.runs.append(_run(stage, instruction, lines, escape))
        case "COPY" | "ADD":
            _copy(stage, instruction, escape)
        case _:
            pass


def _run(stage: Stage, instruction: Instruction, lines: Sequence[str], escape: str) -> RunScript:
    text, first = _script_text(instruction, lines, escape)
    return RunScript(
        script=parse_script(text, first),
        cwd=stage.workdir,
        env=dict(stage.env),
        pipefail="pipefail" in stage.shell,
    )


def _script_text(instruction: Instruction, lines: Sequence[str], escape: str) -> tuple[str, int]:
    """Return the script of a RUN, with its lines at their positions in the file, and its line."""
    if instruction.json_form is not None:
        return shlex.join(instruction.json_form), instruction.line
    own = list(lines[instruction.line - 1 : instruction.end_line])
    if instruction.args.lstrip().startswith("<<") and instruction.heredocs:
        return "".join(heredoc.body for heredoc in instruction.heredocs), instruction.line + 1
    keyword = re.match(r"\s*\w+(?:\s+--[\w-]+(?:=\S*)?)*\s*", own[0])
    assert keyword is not None, own[0]
    own[0] = " " * keyword.end() + own[0][keyword.end() :]
    body = len(own) - sum(h.body.count("\n") + 1 for h in instruction.heredocs)
    for at in range(1, body):
        # Docker drops comments and empty lines between continuation lines; a shell does not.
        if not own[at].strip() or own[at].lstrip().startswith("#"):
            own[at] = "\\"
    if escape == "`":
        own = [re.sub(r"`[ \t]*$", r"\\", line) for line in own]
    # Docker allows white space after the escape character; a shell does not.
    own[:body] = [re.sub(r"\\[ \t]+$", r"\\", line) for line in own[:body]]
    return "\n".join(own), instruction.line


def _copy(stage: Stage, instruction: Instruction, escape: str) -> None:
    words = instruction.json_form or tuple(
        unquote(word) for word in raw_words(instruction.args, escape).words
    )
    words = tuple(expand(word, stage.env) for word in words)
    if len(words) < 2:
        return
    *sources, target = words
    folder = join_path(stage.workdir, target)
    is_add = instruction.keyword == "ADD"
    remote = [s for s in sources if is_add and re.match(r"(?:https?|git)://|git@", s)]
    for url in remote:
        is_git = url.split("#")[0].endswith(".git") or not url.startswith("http")
        name = "" if is_git or not target.endswith("/") else posixpath.basename(url)
        stage.additions.append(RemoteAdd(url, join_path(folder, name), instruction.line))
    if copied := tuple(source for source in sources if source not in remote):
        stage.copies.append(Copy(copied, folder, instruction.flag("from")))


def _pairs(args: str, escape: str) -> tuple[tuple[str, str], ...]:
    try:
        return parse_pairs(args, escape)
    except TaskError:
        return ()


def _args(instruction: Instruction, escape: str) -> dict[str, str]:
    try:
        found = parse_arg(instruction.args, escape)
    except TaskError:
        return {}
    return {name: unquote(value) for name, value in found if value is not None}
