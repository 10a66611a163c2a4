"""The location of a run's ledger: the run directory, or a folder on a local disk.

SQLite's write-ahead log needs shared memory and locks that network file systems do not have. A
run directory on a network file system therefore keeps its ledger on the controller's host:

    <run directory>/ledger.json     names the host and the folder
    <folder>/<run>-<id>/            ledger.db, ledger.lock
    <folder>/<run>-<id>/run.json    names the run directory

The two files match if both have the same folder name and the same `moves`, the number of times
that the ledger was moved. A ledger that matches belongs to this run, whatever the host is called.
A ledger that does not match is an older copy and is not used.
"""

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from plimsoll.core.errors import LedgerError, UsageError
from plimsoll.core.file_systems import file_system_type, is_networked
from plimsoll.core.ids import Owner, short_id
from plimsoll.sandboxes.host.owners import host_name, is_here, this_process

__all__ = ["FILE", "LOCK", "POINTER", "Location", "find", "has_ledger", "make", "run_of"]

FILE = "ledger.db"
LOCK = "ledger.lock"
"""The lock file beside the ledger; the process that writes the ledger holds it."""
POINTER = "ledger.json"
"""The file in a run directory that names a ledger elsewhere."""
_BACK_POINTER = "run.json"

_T = TypeVar("_T")


class _Pointer(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    folder: str
    """The folder of this one ledger: the run's name and an id."""
    why: str = ""
    """The reason why the ledger is not in the run directory, to show."""
    moves: int = 0


class _BackPointer(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Location:
    """A ledger that this host can open."""

    run: Path
    """The run directory."""
    folder: Path
    why: str = ""

    @property
    def ledger(self) -> Path:
        return self.folder / FILE

    @property
    def lock(self) -> Path:
        return self.folder / LOCK

    @property
    def is_elsewhere(self) -> bool:
        return self.folder != self.run

    @property
    def description(self) -> str:
        """The location and its reason, to show. Empty for a ledger in the run directory."""
        if not self.is_elsewhere:
            return ""
        return f"{self.folder} on {host_name(this_process())}" + (
            f" ({self.why})" if self.why else ""
        )

    def publish(self) -> None:
        """Write the pointer to a new ledger into the run directory. The first writer wins."""
        if not self.is_elsewhere:
            return
        try:
            with (self.run / POINTER).open("xb") as file:
                file.write(_pointer(self.folder, self.why, moves=0))
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            raise LedgerError(f"{self.run} is a run already: another process began it") from None
        except OSError as error:
            raise LedgerError(f"cannot write {self.run / POINTER}: {error.strerror}") from None

    def discard(self) -> None:
        """Remove the ledger of a run that never began."""
        if self.is_elsewhere:
            (self.run / POINTER).unlink(missing_ok=True)  # first: a pointer never dangles
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for file in (*self.folder.glob(f"{FILE}*"), self.lock):
            file.unlink(missing_ok=True)


def has_ledger(run: Path) -> bool:
    """Whether a directory is a run directory, with its ledger there or elsewhere."""
    return (run / FILE).is_file() or (run / POINTER).is_file()


def run_of(folder: Path) -> Path:
    """The run directory that the ledger in a folder belongs to."""
    back = _read(folder / _BACK_POINTER, _BackPointer)
    return folder if back is None else Path(back.run)


def make(run: Path, configured: str | None, home: Path) -> Location:
    """Choose the location of a new run's ledger and create its folder.

    `Location.publish` writes the pointer afterwards. `configured` is a folder for the ledgers of
    many runs; `home` is Plimsoll's own folder on this host.
    """
    if configured is not None:
        why = "[storage] ledger"
        base = Path(configured)
        if is_networked(kind := file_system_type(base)):
            raise UsageError(
                f"[storage] ledger: {base} is on {kind}, where SQLite's write-ahead log does not "
                "work: name a folder on a disk of this host, or leave the key out"
            )
    else:
        if not is_networked(kind := file_system_type(run)):
            return Location(run, run)
        why = f"the run directory is on {kind}"
        base = home / "ledgers"
        if is_networked(other := file_system_type(base)):
            raise UsageError(
                f"{run} is on {kind} and {home} on {other}, where SQLite's write-ahead log does "
                "not work: name a folder on a disk of this host with [storage] ledger, or set "
                "PLIMSOLL_HOME to one"
            )
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", run.resolve().name)
    folder = base.absolute() / f"{plain}-{short_id()}"
    try:
        folder.mkdir(mode=0o700, parents=True)
        _write(folder / _BACK_POINTER, _back_pointer(run, moves=0))
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {folder} for the ledger: {error.strerror}; name another with "
            "[storage] ledger"
        ) from None
    return Location(run, folder, why)


def find(run: Path, configured: str | None = None, home: Path | None = None) -> Location:
    """The location of an existing run's ledger. `LedgerError` names the host if it is another one.

    The process that drives the run passes `configured` and `home`, as for `make`: a ledger that was
    copied there from another host is adopted.
    """
    if (run / FILE).exists():
        return _in_run(run, configured)
    pointer = _read(run / POINTER, _Pointer)
    if pointer is None:
        raise LedgerError(
            f"{run / POINTER} does not name a ledger: restore it from a copy, or remove it if the "
            "run never began"
        )
    named = Path(pointer.folder)
    if (back := _matching(named, pointer)) is not None:
        _check_own(run, named, back)
        if configured is not None and named.parent.resolve() != Path(configured).resolve():
            raise UsageError(
                f"[storage] ledger is {configured}, and the ledger of {run} is in {named}: a run "
                f"keeps its ledger where it began. Name {named.parent}, or move {named} to "
                f"{configured}"
            )
        if back.run != str(run.resolve()) and home is not None:
            _bind(run, named, pointer.why, moves=back.moves)  # the run directory was moved
        return Location(run, named, pointer.why)
    base = (
        Path(configured) if configured is not None else None if home is None else home / "ledgers"
    )
    moved = None if base is None else base.absolute() / named.name
    if moved is not None and moved != named and _matching(moved, pointer) is not None:
        why = "[storage] ledger" if configured is not None else pointer.why
        _bind(run, moved, why, moves=pointer.moves + 1)
        return Location(run, moved, why)
    raise LedgerError(_missing(run, pointer, moved or named))


def _in_run(run: Path, configured: str | None) -> Location:
    if configured is not None and Path(configured).resolve() != run.resolve():
        raise UsageError(
            f"[storage] ledger is {configured}, and the ledger of {run} is in the run directory: a "
            "run keeps its ledger where it began. Leave the key out"
        )
    return Location(run, run)


def _matching(folder: Path, pointer: _Pointer) -> _BackPointer | None:
    """The back pointer beside a ledger, if it matches the pointer and the ledger exists."""
    back = _read(folder / _BACK_POINTER, _BackPointer)
    # One ahead of the pointer: the process crashed between the two writes of `_bind`.
    is_it = back is not None and back.moves - pointer.moves in (0, 1)
    return back if is_it and (folder / FILE).exists() else None


def _check_own(run: Path, folder: Path, back: _BackPointer) -> None:
    """Refuse a copy of a run directory: its ledger belongs to the original."""
    other = Path(back.run)
    with contextlib.suppress(OSError):
        if other.samefile(run):
            return
    theirs = _read(other / POINTER, _Pointer)
    if theirs is not None and theirs.folder == str(folder):
        raise LedgerError(
            f"{run} is a copy of {other}, whose ledger is in {folder}: a ledger belongs to one run "
            f"directory. Use {other}; or, to continue this copy instead, remove "
            f"{other / POINTER}"
        )


def _missing(run: Path, pointer: _Pointer, here: Path) -> str:
    name = Path(pointer.folder).name
    if is_here(Owner(pointer.host, 0, "")):
        return (
            f"the ledger of {run} is missing: it was in {pointer.folder}. Put that folder back "
            "from a copy, or begin another run"
        )
    host = host_name(Owner(pointer.host, 0, ""))
    to = here if here.name == name else here / name
    return (
        f"the ledger of {run} is on {host}, in {pointer.folder}: continue there. To continue here, "
        f"stop the run there and copy that folder to {to} on this host"
    )


def _bind(run: Path, folder: Path, why: str, *, moves: int) -> None:
    """Write both pointers, so that run directory and ledger folder name each other."""
    try:
        _write(folder / _BACK_POINTER, _back_pointer(run, moves=moves))
        _write(run / POINTER, _pointer(folder, why, moves=moves))
    except OSError as error:
        raise LedgerError(f"cannot write {error.filename}: {error.strerror}") from None


def _back_pointer(run: Path, *, moves: int) -> bytes:
    return msgspec.json.encode(_BackPointer(run=str(run.resolve()), moves=moves)) + b"\n"


def _pointer(folder: Path, why: str, *, moves: int) -> bytes:
    made = _Pointer(host=this_process().host, folder=str(folder), why=why, moves=moves)
    return msgspec.json.encode(made) + b"\n"


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
