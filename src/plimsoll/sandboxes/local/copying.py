"""The instructions of a Dockerfile that move files, and how RUN becomes a command."""

import contextlib
import posixpath
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.local.context import BuildContext, CopySource
from plimsoll.sandboxes.local.inside.trees import Rules
from plimsoll.sandboxes.local.recipe import Recipe, State
from plimsoll.sandboxes.local.sandbox import LocalSandbox
from plimsoll.tasks.dockerfile import Heredoc, Instruction
from plimsoll.tasks.dockerfile_words import split_words

__all__ = [
    "CopyOrder",
    "CopyPlan",
    "copy_between",
    "copy_in",
    "plan_copy",
    "read_order",
    "run_argv",
]

_REMOTE = ("http://", "https://", "ftp://", "git@", "git://", "ssh://")


def run_argv(instruction: Instruction, shell: tuple[str, ...]) -> list[str]:
    """The command of a RUN: its list as it is, or a text for the shell."""
    if instruction.json_form is not None:
        return list(instruction.json_form)
    heredocs = instruction.heredocs
    if len(heredocs) == 1 and instruction.args.lstrip("0123456789").startswith("<<"):
        return [*shell, heredocs[0].body]
    # A text after a command is the shell's own to read.
    texts = "".join(f"\n{heredoc.body}{heredoc.name}" for heredoc in heredocs)
    return [*shell, instruction.args + texts]


@dataclass(frozen=True, slots=True)
class CopyOrder:
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

    order: CopyOrder
    sources: tuple[CopySource, ...]
    digests: list[str]


def read_order(instruction: Instruction, recipe: Recipe, state: State, *, add: bool) -> CopyOrder:
    """Read a COPY or ADD. What it cannot do is a `BuildError`."""
    where = recipe.where(instruction)
    words = instruction.json_form or split_words(instruction.args, recipe.escape, where)
    *sources, target = (recipe.expand(w, state.variables, instruction) for w in words)
    named = {heredoc.name for heredoc in instruction.heredocs}
    plain = [s for s in sources if s.lstrip("0123456789").lstrip("<-") not in named]
    for source in plain:
        if source.startswith(_REMOTE):
            raise BuildError(f"{where}: ADD does not fetch {source}; put the file in the context")
    if len(plain) + len(named) > 1 and not target.endswith("/"):
        target += "/"
    absolute = posixpath.normpath(posixpath.join(state.image.workdir, target))
    is_folder = target.endswith("/") or target == "."
    mode = instruction.flag("chmod")
    if mode is not None and not mode.isdigit():
        raise BuildError(f"{where}: --chmod takes a number like 0755, not {mode}")
    owner = instruction.flag("chown")
    stage = instruction.flag("from")
    return CopyOrder(
        sources=tuple(plain),
        target=absolute.rstrip("/") + "/" if is_folder else absolute,
        stage=recipe.expand(stage, state.variables, instruction) if stage else None,
        owner=recipe.expand(owner, state.variables, instruction) if owner else None,
        mode=int(mode, 8) if mode is not None else None,
        heredocs=tuple(
            h if not h.expand else _expanded(h, recipe, state, instruction)
            for h in instruction.heredocs
        ),
        unpack_archives=add,
        where=where,
    )


def _expanded(heredoc: Heredoc, recipe: Recipe, state: State, at: Instruction) -> Heredoc:
    # Quotes in a text are plain characters, so they are kept from the expansion.
    guarded = heredoc.body.replace("'", "\\'").replace('"', '\\"')
    body = recipe.expand(guarded, state.variables, at)
    return Heredoc(heredoc.name, body, expand=False, strip_tabs=heredoc.strip_tabs)


def plan_copy(order: CopyOrder, context: BuildContext) -> CopyPlan:
    """Find the files that an order means, and digest them."""
    found = [s for pattern in order.sources for s in context.find(pattern, order.where)]
    if len(found) > 1 and not order.target.endswith("/"):
        raise BuildError(f"{order.where}: with several sources the target must end in /")
    digests = [f"{s.path.name} {s.path.is_dir()} {s.digest()}" for s in found]
    texts = [f"{h.name} {h.body}" for h in order.heredocs]
    return CopyPlan(order, tuple(found), [*digests, *texts, str(order.unpack_archives)])


async def copy_in(plan: CopyPlan, sandbox: LocalSandbox) -> None:
    """Carry the files of a plan into a sandbox."""
    order = plan.order
    for source in plan.sources:
        with contextlib.ExitStack() as stack:
            path, ignored = source.path, source.ignored
            if order.unpack_archives and path.is_file() and tarfile.is_tarfile(path):
                path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                with tarfile.open(source.path) as archive:
                    archive.extractall(path, filter="tar")
                ignored = None
            await sandbox.put(
                path, order.target, ignored=ignored, all_links=True, owner=order.owner,
                mode=order.mode,
            )  # fmt: skip
    for heredoc in order.heredocs:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, heredoc.name)
            file.write_text(heredoc.body)
            await sandbox.put(file, order.target, owner=order.owner, mode=order.mode)


async def copy_between(giver: LocalSandbox, taker: LocalSandbox, order: CopyOrder) -> None:
    """Carry files from another stage, by way of a folder of the host."""
    for source in order.sources:
        with tempfile.TemporaryDirectory() as folder:
            path = posixpath.normpath(posixpath.join("/", source))
            place = Path(folder, posixpath.basename(path) or "root")
            await giver.get(path, place, Rules(all_links=True))
            await taker.put(place, order.target, all_links=True, owner=order.owner, mode=order.mode)
