"""Files of the agent's sandbox that are kept, or carried to a separate verifier."""

import fnmatch
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from plimsoll.core.errors import NoRoom, SandboxUnsupported, TransferError
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
        with tempfile.TemporaryDirectory(prefix="plimsoll-") as aside:
            carried = Path(aside, PurePosixPath(source).name)
            try:
                await sandbox.download(source, carried, limit=_LARGEST)
            except TransferError as error:
                if into is not None and isinstance(error, NoRoom):
                    raise  # this host has none: the tests would miss what the agent did make
                notes.append(str(error))
                continue
            _leave_out(carried, artifact.exclude)
            if into is not None:
                await into.upload(carried, source)
            notes += _keep(carried, _place(folder, artifact))
    return notes


def _place(folder: Path, artifact: ArtifactConfig) -> Path:
    """Where an artifact is kept; a destination cannot lead out of the folder."""
    wanted = artifact.destination or PurePosixPath(artifact.source).name or "artifact"
    parts = [p for p in PurePosixPath(wanted).parts if p not in ("/", "..", ".")]
    return folder.joinpath(*parts)


def _keep(carried: Path, place: Path) -> list[str]:
    """Move an artifact to its place, into a folder that is there already."""
    try:
        if carried.is_dir() and place.is_dir() and not place.is_symlink():
            return [note for path in carried.iterdir() for note in _keep(path, place / path.name)]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(carried, place)
    except OSError as error:
        return [f"{place.name} could not be kept: {error.strerror}"]
    return []


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
