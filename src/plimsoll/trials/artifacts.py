"""Files of the agent's sandbox that are kept, or carried to a separate verifier."""

import fnmatch
import shutil
from pathlib import Path, PurePosixPath

from plimsoll.core.errors import SandboxUnsupported, TransferError
from plimsoll.sandboxes.protocol import Sandbox
from plimsoll.tasks.config import ArtifactConfig
from plimsoll.tasks.task import Step

__all__ = ["ARTIFACTS", "carry_artifacts"]

ARTIFACTS = "/logs/artifacts"
"""What is put here is kept without being asked for."""

_LARGEST = 1 << 30


async def carry_artifacts(
    step: Step, sandbox: Sandbox, folder: Path, *, into: Sandbox | None = None
) -> list[str]:
    """Keep the step's artifacts in `folder`, and put them at the same paths of `into`.

    An artifact that is not there is not an error: that the agent did not make it is for the
    tests to find. What was missing or too large is returned, a line each.
    """
    missing: list[str] = []
    usual = ArtifactConfig(source=ARTIFACTS, destination=".")
    for artifact in (usual, *step.artifacts):
        if artifact.service != "main":
            raise SandboxUnsupported(
                f"artifact {artifact.source}: there is no service {artifact.service!r} here"
            )
        source = str(PurePosixPath(sandbox.workdir, artifact.source))
        place = _place(folder, artifact)
        try:
            await sandbox.download(source, place, limit=_LARGEST)
        except TransferError as error:
            missing.append(str(error))
            continue
        _leave_out(place, artifact.exclude)
        if into is not None:
            await into.upload(place, source)
    return missing


def _place(folder: Path, artifact: ArtifactConfig) -> Path:
    """Where an artifact is kept; a destination cannot lead out of the folder."""
    wanted = artifact.destination or PurePosixPath(artifact.source).name or "artifact"
    parts = [p for p in PurePosixPath(wanted).parts if p not in ("/", "..", ".")]
    return folder.joinpath(*parts)


def _leave_out(place: Path, patterns: tuple[str, ...]) -> None:
    if not patterns or not place.is_dir():
        return
    for path in sorted(place.rglob("*"), reverse=True):
        name = path.relative_to(place).as_posix()
        if any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(path.name, p) for p in patterns):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
