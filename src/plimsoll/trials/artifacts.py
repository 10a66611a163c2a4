"""Artifacts: files of the agent's sandbox that are kept or copied to a separate verifier.

Artifacts are untrusted. Links that lead outside, devices, pipes and sockets are skipped, special
mode bits are dropped, holes in files stay holes, and hard links stay hard links. An artifact
that exceeds the bounds is skipped as a whole. The trial's record lists everything skipped.
"""

import asyncio
import fnmatch
import posixpath
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Self

from plimsoll.core.errors import NoRoom, SandboxUnsupported, TransferError
from plimsoll.sandboxes.protocol import Sandbox, Transfer
from plimsoll.sandboxes.trees.removal import remove_folder
from plimsoll.tasks.task import Step
from plimsoll.tasks.task_file import ArtifactConfig

if TYPE_CHECKING:
    from plimsoll.config.run import StorageConfig

__all__ = ["ARTIFACTS", "Bounds", "copy_artifacts"]

ARTIFACTS = "/logs/artifacts"
"""Files in this folder are always kept."""

_TEMPORARY = ".copied"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one artifact, and of the agent's logs."""

    size: int = 1 << 30
    """Bytes; holes do not count, and hard links count once."""
    entries: int = 20_000
    """Files, folders and links."""

    @classmethod
    def of(cls, storage: "StorageConfig") -> Self:
        """The limits of a config."""
        return cls(storage.artifacts_mb << 20, storage.artifacts_files)


async def copy_artifacts(
    step: Step, sandbox: Sandbox, folder: Path, bounds: Bounds, *, into: Sandbox | None = None
) -> list[str]:
    """Keep the step's artifacts in `folder`, and copy them to the same paths of `into`.

    There they replace existing files. A missing artifact is not an error: the tests decide about
    work that the agent did not do. Returns one line for each artifact that was missing, too
    large or could not be kept.
    """
    notes: list[str] = []
    default = ArtifactConfig(source=ARTIFACTS, destination=".")
    for artifact in (default, *step.artifacts):
        source = _source(sandbox, artifact)
        if artifact.service != "main" or source == "/":
            raise SandboxUnsupported(
                f"artifact {source} of the service {artifact.service!r} is not supported"
            )
        if into is not None:
            await into.exec(["rm", "-rf", "--", source], cwd="/", user="root")
        # Use the same file system: a move keeps holes and hard links.
        temporary = folder.parent / _TEMPORARY
        copied = temporary / PurePosixPath(source).name
        try:
            done = await sandbox.download(source, copied, limit=bounds.size, entries=bounds.entries)
            notes += _skipped(source, done)
            notes += await asyncio.to_thread(_exclude, copied, artifact.exclude)
            if into is not None:
                notes += _skipped(source, await into.upload(copied, source))
            destination = _destination(folder, artifact, source)
            notes += await asyncio.to_thread(_keep, copied, destination)
        except TransferError as error:
            if into is not None and isinstance(error, NoRoom):
                raise  # this host's disk is full: the tests would lack the agent's work
            notes.append(str(error))
        finally:
            await asyncio.to_thread(remove_folder, temporary)
    return notes


def _skipped(source: str, done: Transfer) -> list[str]:
    return [f"{source}: {reason}" for reason in done.skipped]


def _source(sandbox: Sandbox, artifact: ArtifactConfig) -> str:
    """Return the absolute path of an artifact, without `..`: its last part names the copy."""
    path = posixpath.normpath(PurePosixPath(sandbox.workdir, artifact.source))
    return "/" + path.lstrip("/")


def _destination(folder: Path, artifact: ArtifactConfig, source: str) -> Path:
    """Return the path of a kept artifact; a destination cannot leave the folder."""
    name = artifact.destination or PurePosixPath(source).name
    parts = [p for p in PurePosixPath(name).parts if p not in ("/", "..", ".")]
    return folder.joinpath(*parts)


def _keep(copied: Path, destination: Path) -> list[str]:
    """Move an artifact to its destination; merge it into an existing folder."""
    notes: list[str] = []
    pending = [(copied, destination)]
    while pending:
        source, target = pending.pop()
        try:
            if _is_folder(source) and _is_folder(target):
                pending += ((path, target / path.name) for path in source.iterdir())
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        except OSError as error:
            notes.append(f"{target.name} could not be kept: {error.strerror}")
    return notes


def _exclude(artifact: Path, patterns: tuple[str, ...]) -> list[str]:
    """Remove excluded files of a tree of any depth."""
    notes: list[str] = []
    pending = [artifact] if patterns and _is_folder(artifact) else []
    while pending:
        try:
            for path in [*pending.pop().iterdir()]:
                name = path.relative_to(artifact).as_posix()
                if any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(path.name, p) for p in patterns):
                    remove_folder(path)
                elif _is_folder(path):
                    pending.append(path)
        except OSError as error:
            notes.append(f"{artifact.name}: excluded files could not be removed: {error.strerror}")
    return notes


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
