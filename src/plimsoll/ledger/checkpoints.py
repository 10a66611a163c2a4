"""Checkpoints: complete or absent.

A checkpoint is a folder of files and a manifest beside it. The files are synced to disk before
the manifest is renamed into place, and that rename is the commit: a folder without a manifest
is left over from a crash and never used.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from plimsoll.core.errors import CheckpointError, LedgerError
from plimsoll.core.versions import Lineages, Version
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.recovery import can_restore, is_beyond

__all__ = ["FOLDER", "Checkpoint", "Checkpoints"]

FOLDER = "checkpoints"
"""Folder name in the run directory."""

_KEEP_AT_LEAST = 2
_NAMES = "v*-????????"
_CHUNK = 1 << 20


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest: the content of a checkpoint, and its position in the run."""

    name: str
    version: Version
    position: int
    """The last event of the ledger that it includes."""
    files: dict[str, str]
    """The digest of each file, by its path in the folder."""
    state: dict[str, str | int | float | None] = {}
    """Other state to continue from: random number generators, the order of the data."""


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path, *, keep: int = _KEEP_AT_LEAST) -> None:
        if keep < _KEEP_AT_LEAST:
            raise LedgerError(
                f"{keep} checkpoint(s) would be kept; at least {_KEEP_AT_LEAST} must be, "
                "for one may turn out to be unreadable"
            )
        self.folder = folder
        self._keep = keep

    def path(self, checkpoint: Checkpoint) -> Path:
        """The folder with its files."""
        return self.folder / checkpoint.name

    def write(
        self,
        version: Version,
        position: int,
        save: Callable[[Path], None],
        lineages: Lineages,
        state: Mapping[str, str | int | float | None] | None = None,
    ) -> Checkpoint:
        """Let `save` write files into a folder, and commit them as the version's checkpoint.

        Removes the oldest checkpoints, and those that the version does not descend from.
        """
        name = f"v{version.lineage}-{version.number:08d}"
        folder, manifest = self.folder / name, self._manifest(name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            manifest.unlink(missing_ok=True)  # first: a manifest never lacks its files
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            save(folder)
            made = Checkpoint(
                name=name,
                version=version,
                position=position,
                files=_sync_all(folder),
                state=dict(state or {}),
            )
            _write_atomically(manifest, msgspec.json.encode(made))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)  # a full disk needs the space
            raise CheckpointError(
                f"cannot write the checkpoint {folder}: {error.strerror or error}; "
                "the last one stays"
            ) from None
        self._forget_old(made, lineages)
        return made

    def all(self) -> list[Checkpoint]:
        """The complete checkpoints, the newest last: lineages are numbered as they begin."""
        return [made for made in self._manifests() if self._is_whole(made)]

    def restorable(self, books: Books) -> list[Checkpoint]:
        """The checkpoints that a run with these books can continue from, the newest first.

        Their files are not checked; `verify` does that.
        """
        restorable = [made for made in self._manifests() if can_restore(books, made.version)]
        order = sorted(restorable, key=lambda made: (made.version.number, made.version))
        return order[::-1]

    def beyond(self, books: Books) -> str:
        """Evidence that the books have lost their last events; empty if there is none.

        Events are on disk before the checkpoint that they lead to: a checkpoint unknown to the
        books shows that the ledger is incomplete.
        """
        for made in reversed(self._manifests()):
            if is_beyond(books, made.version):
                return (
                    f"the ledger is at version {books.version}, and {self._manifest(made.name)} is "
                    f"of version {made.version}: the ledger's last events are missing"
                )
        return ""

    def verify(self, checkpoint: Checkpoint) -> list[str]:
        """Files whose content does not match the manifest."""
        folder = self.path(checkpoint)
        return [
            name
            for name, digest in checkpoint.files.items()
            if not (folder / name).is_file() or _digest(folder / name) != digest
        ]

    def _manifests(self) -> list[Checkpoint]:
        found: list[Checkpoint] = []
        for file in self.folder.glob("*.json"):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                made = msgspec.json.decode(file.read_bytes(), type=Checkpoint)
                if self._manifest(made.name) == file:
                    found.append(made)
        return sorted(found, key=lambda made: made.version)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        return all((self.path(checkpoint) / name).is_file() for name in checkpoint.files)

    def _manifest(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _forget_old(self, newest: Checkpoint, lineages: Lineages) -> None:
        """Remove checkpoints beyond the last ones of this lineage; the manifest before its
        files."""
        checkpoints = self.all()
        living = [made for made in checkpoints if lineages.descends(newest.version, made.version)]
        kept_names = {made.name for made in living[-self._keep :]}
        for old in checkpoints:
            if old.name not in kept_names:
                self._manifest(old.name).unlink(missing_ok=True)
                shutil.rmtree(self.path(old), ignore_errors=True)
        # Partial files of a crash: no other process writes here.
        for left in self.folder.glob(_NAMES):
            if left.is_dir() and not self._manifest(left.name).exists():
                shutil.rmtree(left, ignore_errors=True)


def _sync_all(folder: Path) -> dict[str, str]:
    """Sync every file to disk; returns their digests."""
    digests: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digests[str(path.relative_to(folder))] = _digest(path)
        _sync(path)
    _sync(folder)
    _sync(folder.parent)
    return digests


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _write_atomically(path: Path, data: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(data)
    _sync(part)
    part.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
