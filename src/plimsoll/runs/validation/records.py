"""Validation records: for each task and backend, the results of the oracle and of nop.

    <folder>/validation.json    a record of each task on each backend, with all its verdicts
    <folder>/quarantine.txt     the tasks that runs leave out, and the reasons

The folder is `.plimsoll` beside the tasks, or one that the user names. A task is identified by
its path relative to the set. Its record holds a digest of its folder and the key of the assets:
a changed task is not validated, nor one that runs with other assets.
"""

import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.runs.validation.admission import ValidationState, ValidationStatus
from plimsoll.runs.validation.quarantine import NAME as QUARANTINE
from plimsoll.runs.validation.quarantine import Quarantine
from plimsoll.tasks.folder_digest import digest_folders
from plimsoll.trials.verdicts import Cause

__all__ = ["Attempt", "RecordFolder", "TaskRecord", "TaskRecords", "digest_task", "judge_task"]

FOLDER = ".plimsoll"
NAME = "validation.json"
_FORMAT = 1


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one trial of the oracle or of nop."""

    reward: float | None
    cause: Cause | None
    reason: str | None

    @property
    def outcome(self) -> float | str | None:
        """The value that must be equal in all attempts: the reward, or the cause of a void."""
        return self.reward if self.reward is not None else self.cause

    @property
    def text(self) -> str:
        return f"void: {self.cause}" if self.reward is None else f"{self.reward:g}"


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one task on one backend."""

    task: str
    """The task's path, relative to the folder beside which the records are."""
    backend: str
    ok: bool
    reason: str | None
    """The reason for its quarantine."""
    flaky: str | None
    """The differing outcomes, if they differ."""
    maximum: float | None
    oracle: list[Attempt]
    nop: list[Attempt]
    digest: str
    date: str
    assets: str = ""
    """The key of the assets that it was validated with; empty without any."""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    tasks: list[TaskRecord]


def digest_task(folder: Path) -> str:
    """The digest of a task's whole folder."""
    try:
        return digest_folders([folder])
    except OSError as error:
        raise UsageError(f"cannot read {error.filename or folder}: {error.strerror}") from error


def judge_task(
    maximum: float, oracle: Sequence[Attempt], nop: Sequence[Attempt]
) -> tuple[str | None, str | None]:
    """The reason to quarantine a task, and its differing outcomes; None for each without a
    fault."""
    return _fault(maximum, oracle, nop), _flaky(oracle, nop)


def _fault(maximum: float, oracle: Sequence[Attempt], nop: Sequence[Attempt]) -> str | None:
    for agent, attempts in (("the oracle", oracle), ("nop", nop)):
        void = [one for one in attempts if one.reward is None]
        if void:
            times = "" if len(void) == len(attempts) else f", {len(void)} of {len(attempts)} times"
            return f"{agent} is void{times}: {void[0].cause}: {void[0].reason}"
    low = min(one.reward for one in oracle if one.reward is not None)
    if low < maximum:
        return f"the oracle is graded {low:g}, and the task's maximum is {maximum:g}"
    high = max(one.reward for one in nop if one.reward is not None)
    if high >= maximum:
        return f"nop is graded {high:g}: the task gives its maximum for nothing"
    return None


def _flaky(oracle: Sequence[Attempt], nop: Sequence[Attempt]) -> str | None:
    differing = [
        f"{agent} {', '.join(one.text for one in attempts)}"
        for agent, attempts in (("oracle", oracle), ("nop", nop))
        if len({one.outcome for one in attempts}) > 1
    ]
    return "; ".join(differing) or None


@dataclass(frozen=True, slots=True)
class RecordFolder:
    """The folder of the records of the tasks at a path, and the root of the tasks' names."""

    root: Path
    folder: Path

    @classmethod
    def of(cls, path: Path, given: Path | None = None) -> "RecordFolder":
        """The folder beside the tasks, never inside one: that would change the task's digest."""
        # Not resolved: a task that is a symlink keeps its name in the set.
        here = Path(os.path.abspath(path))  # noqa: PTH100
        root = here.parent if (here / "task.toml").exists() else here
        return cls(root, root / FOLDER if given is None else given)

    def key(self, task: Path) -> str:
        return Path(os.path.abspath(task)).relative_to(self.root).as_posix()  # noqa: PTH100

    def check_writable(self) -> None:
        """Refuse a folder that is not writable, before any trial is run for it."""
        _write(self.folder / NAME, None)


@dataclass(frozen=True, slots=True)
class TaskRecords:
    """The records in a folder, and the quarantine list beside them."""

    location: RecordFolder
    records: dict[tuple[str, str], TaskRecord]
    quarantine: Quarantine

    @classmethod
    def load(cls, location: RecordFolder) -> "TaskRecords":
        """Load the records; empty if there is no file."""
        file = location.folder / NAME
        try:
            data = msgspec.json.decode(file.read_bytes(), type=_File)
        except FileNotFoundError:
            data = _File(format=_FORMAT, tasks=[])
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise UsageError(
                f"{file}: not a validation ({error}); remove it and validate again"
            ) from error
        if data.format != _FORMAT:
            raise UsageError(f"{file}: format {data.format}, not {_FORMAT}: of another Plimsoll")
        records = {(record.task, record.backend): record for record in data.tasks}
        quarantine = Quarantine.load(location.folder)
        quarantine.check(location.folder, location.root)
        return cls(location, records, quarantine)

    def status(self, task: Path, backend: str, assets: str = "") -> ValidationStatus:
        """The status of a task on a backend with these assets, for its current content."""
        key = self.location.key(task)
        record = self.records.get((key, backend))
        listed = self.quarantine.by_hand(key, backend, record.reason if record else None)
        if listed is not None:
            return ValidationStatus(
                ValidationState.QUARANTINED, listed
            )  # for any content of the task
        if record is None:
            return ValidationStatus(ValidationState.UNKNOWN)
        if record.assets != assets:
            return ValidationStatus(ValidationState.OTHER_ASSETS, record.date)
        if record.digest != digest_task(task):
            return ValidationStatus(ValidationState.CHANGED, record.date)
        return ValidationStatus(
            ValidationState.VALID if record.ok else ValidationState.QUARANTINED, record.reason or ""
        )

    def failed(self, task: Path, backend: str) -> bool:
        """True if a task's last validation on a backend failed, even if the task changed since."""
        record = self.records.get((self.location.key(task), backend))
        return record is not None and not record.ok

    @classmethod
    def add(cls, location: RecordFolder, records: Sequence[TaskRecord]) -> tuple[Path, Path]:
        """Add records to the current files, under a lock."""
        with _held(location.folder):
            return cls.load(location).merged(records).save()

    def merged(self, records: Sequence[TaskRecord]) -> "TaskRecords":
        """The records with new ones in place of the old ones of the same task and backend."""
        quarantine = self.quarantine
        for backend in dict.fromkeys(record.backend for record in records):
            of_it = [record for record in records if record.backend == backend]
            bad = {record.task: record.reason or "" for record in of_it if not record.ok}
            quarantine = quarantine.replaced([record.task for record in of_it], backend, bad)
        new = {(record.task, record.backend): record for record in records}
        return TaskRecords(self.location, dict(sorted((self.records | new).items())), quarantine)

    def save(self) -> tuple[Path, Path]:
        """Write both files, each atomically."""
        data = msgspec.json.encode(_File(format=_FORMAT, tasks=list(self.records.values())))
        files = (self.location.folder / NAME, self.location.folder / QUARANTINE)
        _write(files[0], msgspec.json.format(data, indent=2) + b"\n")
        _write(files[1], self.quarantine.text().encode())
        return files


@contextmanager
def _held(folder: Path) -> Generator[None]:
    """Lock a folder against other writers; without effect on file systems without locks."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(file: Path, data: bytes | None) -> None:
    """Write a file atomically; with None, only check that it is writable."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as opened:
            opened.write(data or b"")
            opened.flush()
            os.fsync(opened.fileno())
        if data is None:
            part.unlink()
        else:
            part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise UsageError(
            f"cannot write {file.parent}: {error.strerror or error}; choose another folder with "
            "--out DIR, and name it to runs with --validation DIR"
        ) from error
