"""The instructions of a Dockerfile that move files."""

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
    """What a COPY or ADD says, variables replaced."""

    sources: tuple[str, ...]
    target: str
    """Absolute; ends in a slash where it is a folder."""
    stage: str | None
    owner: str | None
    mode: int | None
    heredocs: tuple[Heredoc, ...]
    unpack_archives: bool
    where: str


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """An order with the files of the context that it means."""

    order: CopyInstruction
    sources: tuple[CopySource, ...]
    digests: list[str]


def parse_copy(
    instruction: Instruction, recipe: DockerfileStages, state: StageState, *, add: bool
) -> CopyInstruction:
    """Read a COPY or ADD. What it cannot do is a `BuildError`."""
    where = recipe.where(instruction)
    words = instruction.json_form or split_words(instruction.args, recipe.escape, where)
    *sources, target = (recipe.expand(w, state.variables, instruction) for w in words)
    named = [heredoc.name for heredoc in instruction.heredocs]
    plain = [s for s in sources if not ((m := _HEREDOC.fullmatch(s)) and m[1] in named)]
    for source in plain:
        if source.startswith(_REMOTE):
            raise BuildError(f"{where}: {source} is not fetched; put the file in the context")
    for name in named:
        if "/" in name:
            raise BuildError(f"{where}: <<{name}: a text's name may have no /")
    is_folder = len(sources) > 1 or _FOLDER.fullmatch(target) is not None
    absolute = posixpath.normpath(posixpath.join(state.image.workdir, target))
    flags = {
        name: recipe.expand(value, state.variables, instruction) if value else None
        for name in ("from", "chown", "chmod")
        for value in (instruction.flag(name),)
    }
    return CopyInstruction(
        sources=tuple(plain),
        target=absolute.rstrip("/") + "/" if is_folder else absolute,
        stage=flags["from"],
        owner=_owner(flags["chown"]),
        mode=_mode(flags["chmod"], where),
        heredocs=tuple(_expanded(h, recipe, state, instruction) for h in instruction.heredocs),
        unpack_archives=add,
        where=where,
    )


def _owner(chown: str | None) -> str | None:
    """A number alone is the group's too, as in Docker."""
    return f"{chown}:{chown}" if chown and chown.isdigit() else chown


def _mode(chmod: str | None, where: str) -> int | None:
    if chmod is None:
        return None
    if not _MODE.fullmatch(chmod):
        raise BuildError(f"{where}: --chmod takes a number like 0755, not {chmod}")
    return int(chmod, 8)


def _expanded(
    heredoc: Heredoc, recipe: DockerfileStages, state: StageState, at: Instruction
) -> Heredoc:
    if not heredoc.expand:
        return heredoc
    body = recipe.expand(heredoc.body, state.variables, at, keep_quotes=True)
    return Heredoc(heredoc.name, body, expand=False, strip_tabs=heredoc.strip_tabs)


def plan_copy(order: CopyInstruction, context: BuildContext) -> CopyPlan:
    """Find the files that an order means, and digest them."""
    found = [s for pattern in order.sources for s in context.find(pattern, order.where)]
    digests = [f"{s.path.name} {s.path.is_dir()} {s.digest()}" for s in found]
    texts = [f"{h.name} {h.body}" for h in order.heredocs]
    return CopyPlan(order, tuple(found), [*digests, *texts, str(order.unpack_archives)])


async def copy_from_context(plan: CopyPlan, sandbox: LocalSandbox) -> None:
    """Carry the files of a plan into a sandbox."""
    order = plan.order
    # Several files, also by one pattern, go into a folder.
    target = order.target.rstrip("/") + "/" if len(plan.sources) > 1 else order.target
    for source in plan.sources:
        async with contextlib.AsyncExitStack() as stack:
            path, ignored, archive = source.path, source.ignored, False
            if order.unpack_archives and await asyncio.to_thread(is_archive, path):
                path = await stack.enter_async_context(large_temporary_folder())
                await asyncio.to_thread(unpack_archive, source.path, path, order.where)
                ignored, archive = None, True
            carried = await sandbox.put(
                path, target, ignored=ignored, as_image=True, owner=order.owner,
                mode=order.mode, keep_owners=archive and _several_users(),
            )  # fmt: skip
            _must_be_whole(carried, order)
    mode = 0o644 if order.mode is None else order.mode
    for heredoc in order.heredocs:
        await put_text(sandbox, heredoc.body, order.target, heredoc.name, mode, order.owner)


async def put_text(
    sandbox: LocalSandbox, text: str, target: str, name: str, mode: int, owner: str | None = None
) -> None:
    """Write a text to a file in a sandbox; `name` is its own where `target` is a folder."""
    async with large_temporary_folder() as folder:
        file = folder / name
        file.write_bytes(text.encode())
        await sandbox.put(file, target, as_image=True, owner=owner, mode=mode)


async def make_folder(sandbox: LocalSandbox, path: str, owner: str) -> None:
    """Make a folder and what is missing above it; what is there stays as it is."""
    async with large_temporary_folder() as empty:
        await sandbox.put(empty, path, owner=None if owner in ("root", "0") else owner)


async def copy_from_stage(giver: LocalSandbox, taker: LocalSandbox, order: CopyInstruction) -> None:
    """Carry files from another stage, by way of a folder of the host."""
    found = [path for source in order.sources for path in await _find(giver, source, order.where)]
    target = order.target.rstrip("/") + "/" if len(found) > 1 else order.target
    owners = _several_users()
    rules = Rules(as_image=True, keep_owners=owners)
    for path in found:
        async with large_temporary_folder() as folder:
            place = folder / posixpath.basename(path)
            _must_be_whole(await giver.get(path, place, rules, follow=True), order)
            await taker.put(
                place, target, as_image=True, keep_owners=owners, owner=order.owner, mode=order.mode
            )


def _several_users() -> bool:
    """Without root a sandbox has one user, to whom everything belongs."""
    return os.geteuid() == 0


async def _find(giver: LocalSandbox, source: str, where: str) -> list[str]:
    """The paths in another stage that a source of COPY names."""
    path = posixpath.normpath("/" + source.lstrip("/"))
    if path == "/":
        raise BuildError(f"{where}: COPY --from of a whole root is not done; name its folders")
    if not is_pattern(path):
        return [path]
    found = ["/"]
    for part in path.strip("/").split("/"):
        name = NamePattern(part, where)
        found = [
            posixpath.join(folder, entry)
            for folder in found
            for entry in await _names(giver, folder, where)
            if name.matches(entry)
        ]
    return found


async def _names(giver: LocalSandbox, folder: str, where: str) -> list[str]:
    listed = await giver.exec(
        ["/bin/sh", "-c", _LIST, "sh", folder], cwd="/", user="root", keep=_LIST_BYTES
    )
    if not listed.ok or listed.stdout.dropped:
        raise BuildError(f"{where}: {folder} {listed.complaint()}")
    names = os.fsdecode(listed.stdout.data).split("\0")
    return sorted({*names} - {"", ".", ".."})


def _must_be_whole(carried: Transfer, order: CopyInstruction) -> None:
    if carried.skipped:
        raise BuildError(f"{order.where}: cannot be copied: {carried.skipped[0]}")
