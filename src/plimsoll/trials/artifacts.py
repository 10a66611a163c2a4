"""Files of the agent's sandbox that are kept, or carried to a separate verifier.

Nothing of them is trusted. Links that lead out, devices, pipes and sockets are left out, special
bits of modes are dropped, holes in files stay holes and a file with several names stays one file.
An artifact beyond the bounds is left out whole. The trial's record names all that was left out.
"""

import asyncio
import fnmatch
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from plimsoll.core.errors import NoRoom, SandboxUnsupported, TransferError
from plimsoll.sandboxes.protocol import Sandbox, Transfer
from plimsoll.sandboxes.trees.removal import remove_folder
from plimsoll.tasks.task import Step
from plimsoll.tasks.task_file import ArtifactConfig

__all__ = ["ARTIFACTS", "Bounds", "carry_artifacts"]

ARTIFACTS = "/logs/artifacts"
"""What is put here is kept without being asked for."""

_ASIDE = ".carried"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that is kept of one artifact, and of the agent's logs."""

    size: int = 1 << 30
    """Bytes; holes count for nothing, and a file with several names counts once."""
    entries: int = 20_000
    """Files, folders and links."""


async def carry_artifacts(
    step: Step, sandbox: Sandbox, folder: Path, bounds: Bounds, *, into: Sandbox | None = None
) -> list[str]:
    """Keep the step's artifacts in `folder`, and put them at the same paths of `into`.

    There they take the place of whatever the image has. An artifact that is not there is not
    an error: that the agent did not make it is for the tests to find. What was missing or too
    large, or could not be kept, is returned, a line each.
    """
    notes: list[str] = []
    usual = ArtifactConfig(source=ARTIFACTS, destination=".")
    for artifact in (usual, *step.artifacts):
        source = str(PurePosixPath(sandbox.workdir, artifact.source))
        if artifact.service != "main" or source == "/":
            raise SandboxUnsupported(
                f"artifact {source} of the service {artifact.service!r} cannot be taken here"
            )
        if into is not None:
            await into.exec(["rm", "-rf", "--", source], cwd="/", user="root")
        # Beside its place: only a move within one file system leaves holes and names as they are.
        aside = folder.parent / _ASIDE
        carried = aside / PurePosixPath(source).name
        try:
            done = await sandbox.download(
                source, carried, limit=bounds.size, entries=bounds.entries
            )
            notes += _left_out(source, done)
            notes += await asyncio.to_thread(_leave_out, carried, artifact.exclude)
            if into is not None:
                notes += _left_out(source, await into.upload(carried, source))
            notes += await asyncio.to_thread(_keep, carried, _place(folder, artifact))
        except TransferError as error:
            if into is not None and isinstance(error, NoRoom):
                raise  # this host has none: the tests would miss what the agent did make
            notes.append(str(error))
        finally:
            await asyncio.to_thread(remove_folder, aside)
    return notes


def _left_out(source: str, done: Transfer) -> list[str]:
    return [f"{source}: {what}" for what in done.skipped]


def _place(folder: Path, artifact: ArtifactConfig) -> Path:
    """Where an artifact is kept; a destination cannot lead out of the folder."""
    wanted = artifact.destination or PurePosixPath(artifact.source).name or "artifact"
    parts = [p for p in PurePosixPath(wanted).parts if p not in ("/", "..", ".")]
    return folder.joinpath(*parts)


def _keep(carried: Path, place: Path) -> list[str]:
    """Move an artifact to its place, into a folder that is there already."""
    notes: list[str] = []
    waiting = [(carried, place)]
    while waiting:
        source, target = waiting.pop()
        try:
            if _is_folder(source) and _is_folder(target):
                waiting += ((path, target / path.name) for path in source.iterdir())
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        except OSError as error:
            notes.append(f"{target.name} could not be kept: {error.strerror}")
    return notes


def _leave_out(place: Path, patterns: tuple[str, ...]) -> list[str]:
    """Remove what the task does not want kept. A tree of any depth is gone through."""
    notes: list[str] = []
    waiting = [place] if patterns and _is_folder(place) else []
    while waiting:
        try:
            for path in [*waiting.pop().iterdir()]:
                name = path.relative_to(place).as_posix()
                if any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(path.name, p) for p in patterns):
                    remove_folder(path)
                elif _is_folder(path):
                    waiting.append(path)
        except OSError as error:
            notes.append(f"{place.name}: what is left out of it is kept: {error.strerror}")
    return notes


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
