"""COPY and ADD: parses the instructions, and copies files from the context or another stage."""

import asyncio
import contextlib
import os
import posixpath
import re
from dataclasses import dataclass

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.host.temporary import large_temporary_folder
from plimsoll.sandboxes.local.images.context import (
    BuildContext,
    CopySource,
    NamePattern,
    is_archive,
    is_pattern,
    unpack_archive,
)
from plimsoll.sandboxes.local.images.stages import DockerfileStages, StageState
from plimsoll.sandboxes.local.sandbox import LocalSandbox
from plimsoll.sandboxes.protocol import Transfer
from plimsoll.sandboxes.trees import Rules
from plimsoll.tasks.dockerfile.parser import Heredoc, Instruction
from plimsoll.tasks.dockerfile.words import split_words

__all__ = [
    "CopyInstruction",
    "CopyPlan",
    "copy_from_context",
    "copy_from_stage",
    "make_folder",
    "parse_copy",
    "plan_copy",
    "put_text",
]

_REMOTE = ("http://", "https://", "ftp://", "git@", "git://", "ssh://")
_HEREDOC = re.compile(r"\d*<<-?(.+)", re.DOTALL)
_MODE = re.compile(r"0?[0-7]{3,4}")
_FOLDER = re.compile(r"(.*/)?\.{0,2}")
_LIST = """cd -- "$1" 2>/dev/null || exit 0
for name in * .*; do
  if [ -e "$name" ] || [ -L "$name" ]; then printf '%s\\0' "$name"; fi
done"""
_LIST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class CopyInstruction:
    """A parsed COPY or ADD, with variables expanded."""

    sources: tuple[str, ...]
    target: str
    """Absolute. A folder ends with a slash."""
    stage: str | None
    owner: str | None
    mode: int | None
    heredocs: tuple[Heredoc, ...]
    unpack_archives: bool
    where: str


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """An instruction with the files of the context that it names."""

    copy_spec: CopyInstruction
    sources: tuple[CopySource, ...]
    digests: list[str]


def parse_copy(
    instruction: Instruction, stages: DockerfileStages, state: StageState, *, add: bool
) -> CopyInstruction:
    """Parse a COPY or ADD. Raises `BuildError` if it is unsupported."""
    where = stages.where(instruction)
    words = instruction.json_form or split_words(instruction.args, stages.escape, where)
    *sources, target = (stages.expand(w, state.variables, instruction) for w in words)
    named = [heredoc.name for heredoc in instruction.heredocs]
    plain = [s for s in sources if not ((m := _HEREDOC.fullmatch(s)) and m[1] in named)]
    for source in plain:
        if source.startswith(_REMOTE):
            raise BuildError(f"{where}: {source} is not fetched; put the file in the build context")
    for name in named:
        if "/" in name:
            raise BuildError(f"{where}: <<{name}: the name of a heredoc may not contain /")
    is_folder = len(sources) > 1 or _FOLDER.fullmatch(target) is not None
    absolute = posixpath.normpath(posixpath.join(state.image.workdir, target))
    flags = {
        name: stages.expand(value, state.variables, instruction) if value else None
        for name in ("from", "chown", "chmod")
        for value in (instruction.flag(name),)
    }
    return CopyInstruction(
        sources=tuple(plain),
        target=absolute.rstrip("/") + "/" if is_folder else absolute,
        stage=flags["from"],
        owner=_owner(flags["chown"]),
        mode=_mode(flags["chmod"], where),
        heredocs=tuple(_expanded(h, stages, state, instruction) for h in instruction.heredocs),
        unpack_archives=add,
        where=where,
    )


def _owner(chown: str | None) -> str | None:
    """A user number alone is the group number too, as in Docker."""
    return f"{chown}:{chown}" if chown and chown.isdigit() else chown


def _mode(chmod: str | None, where: str) -> int | None:
    if chmod is None:
        return None
    if not _MODE.fullmatch(chmod):
        raise BuildError(f"{where}: --chmod takes a number like 0755, not {chmod}")
    return int(chmod, 8)


def _expanded(
    heredoc: Heredoc, stages: DockerfileStages, state: StageState, at: Instruction
) -> Heredoc:
    if not heredoc.expand:
        return heredoc
    body = stages.expand(heredoc.body, state.variables, at, keep_quotes=True)
    return Heredoc(heredoc.name, body, expand=False, strip_tabs=heredoc.strip_tabs)


def plan_copy(copy_spec: CopyInstruction, context: BuildContext) -> CopyPlan:
    """Find the files of an instruction, and digest them."""
    found = [s for pattern in copy_spec.sources for s in context.find(pattern, copy_spec.where)]
    digests = [f"{s.path.name} {s.path.is_dir()} {s.digest()}" for s in found]
    texts = [f"{h.name} {h.body}" for h in copy_spec.heredocs]
    return CopyPlan(copy_spec, tuple(found), [*digests, *texts, str(copy_spec.unpack_archives)])


async def copy_from_context(plan: CopyPlan, sandbox: LocalSandbox) -> None:
    """Copy the files of a plan into a sandbox."""
    copy_spec = plan.copy_spec
    # Several files, even from one pattern, go into a folder.
    target = copy_spec.target.rstrip("/") + "/" if len(plan.sources) > 1 else copy_spec.target
    for source in plan.sources:
        async with contextlib.AsyncExitStack() as stack:
            path, ignored, archive = source.path, source.ignored, False
            if copy_spec.unpack_archives and await asyncio.to_thread(is_archive, path):
                path = await stack.enter_async_context(large_temporary_folder())
                await asyncio.to_thread(unpack_archive, source.path, path, copy_spec.where)
                ignored, archive = None, True
            transfer = await sandbox.put(
                path, target, ignored=ignored, as_image=True, owner=copy_spec.owner,
                mode=copy_spec.mode, keep_owners=archive and _several_users(),
            )  # fmt: skip
            _check_complete(transfer, copy_spec)
    mode = 0o644 if copy_spec.mode is None else copy_spec.mode
    for heredoc in copy_spec.heredocs:
        await put_text(sandbox, heredoc.body, copy_spec.target, heredoc.name, mode, copy_spec.owner)


async def put_text(
    sandbox: LocalSandbox, text: str, target: str, name: str, mode: int, owner: str | None = None
) -> None:
    """Write a text to a file in a sandbox, called `name` if `target` is a folder."""
    async with large_temporary_folder() as folder:
        file = folder / name
        file.write_bytes(text.encode())
        await sandbox.put(file, target, as_image=True, owner=owner, mode=mode)


async def make_folder(sandbox: LocalSandbox, path: str, owner: str) -> None:
    """Create a folder and its missing parents. Existing folders are not changed."""
    async with large_temporary_folder() as empty:
        await sandbox.put(empty, path, owner=None if owner in ("root", "0") else owner)


async def copy_from_stage(
    source_sandbox: LocalSandbox, target_sandbox: LocalSandbox, copy_spec: CopyInstruction
) -> None:
    """Copy files from another stage, through a folder of the host."""
    found = [
        path
        for source in copy_spec.sources
        for path in await _find(source_sandbox, source, copy_spec.where)
    ]
    target = copy_spec.target.rstrip("/") + "/" if len(found) > 1 else copy_spec.target
    owners = _several_users()
    rules = Rules(as_image=True, keep_owners=owners)
    for path in found:
        async with large_temporary_folder() as folder:
            copy = folder / posixpath.basename(path)
            _check_complete(await source_sandbox.get(path, copy, rules, follow=True), copy_spec)
            await target_sandbox.put(
                copy,
                target,
                as_image=True,
                keep_owners=owners,
                owner=copy_spec.owner,
                mode=copy_spec.mode,
            )


def _several_users() -> bool:
    """Whether sandboxes have several users. Without root they have one."""
    return os.geteuid() == 0


async def _find(source_sandbox: LocalSandbox, source: str, where: str) -> list[str]:
    """The paths in another stage that a source of COPY names."""
    path = posixpath.normpath("/" + source.lstrip("/"))
    if path == "/":
        raise BuildError(
            f"{where}: COPY --from of the whole root is not supported; name its folders"
        )
    if not is_pattern(path):
        return [path]
    found = ["/"]
    for part in path.strip("/").split("/"):
        name = NamePattern(part, where)
        found = [
            posixpath.join(folder, entry)
            for folder in found
            for entry in await _names(source_sandbox, folder, where)
            if name.matches(entry)
        ]
    return found


async def _names(source_sandbox: LocalSandbox, folder: str, where: str) -> list[str]:
    listed = await source_sandbox.exec(
        ["/bin/sh", "-c", _LIST, "sh", folder], cwd="/", user="root", keep=_LIST_BYTES
    )
    if not listed.ok or listed.stdout.dropped:
        raise BuildError(f"{where}: {folder} {listed.complaint()}")
    names = os.fsdecode(listed.stdout.data).split("\0")
    return sorted({*names} - {"", ".", ".."})


def _check_complete(transfer: Transfer, copy_spec: CopyInstruction) -> None:
    if transfer.skipped:
        raise BuildError(f"{copy_spec.where}: cannot be copied: {transfer.skipped[0]}")
