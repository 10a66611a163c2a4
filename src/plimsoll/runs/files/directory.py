"""The run directory: a folder for each trial, results as they finish, the ledger, a summary.

    runs/<name>/
    ├── trials/<task>.<attempt>/    files of a trial: verdict.json, output, timings
    ├── trajectories/               one file per ticket, unless the config names another storage
    ├── blobs/                      contents too large for a trajectory, by digest
    ├── results.jsonl               one line per finished trial, in the order they finished
    ├── canaries/<task>.<number>/   files of a canary, if there are any
    ├── canaries.jsonl              one line per finished canary
    ├── config.toml                 the effective config, with absolute paths
    ├── request.json                the arguments of the command, unless it is `plimsoll run`
    ├── ledger.db                   every trial, from before it starts, and ledger.lock
    ├── ledger.json                 the location of these two, if they are elsewhere
    ├── stored_as.json              the run's unique name in shared storages
    ├── status.json                 the current status, rewritten each second
    ├── controller.json             the controller process; removed at an orderly end
    └── summary.json                the whole run, written once at its end

`plimsoll run`, whose trials are `trials/<task>.<ticket>/`, adds:

    ├── steps.jsonl                 one line per step: batch, timings, losses
    ├── validation/<set>/           trials of tasks that were validated at the start
    ├── training.png                a plot of the training: reward, age, sandbox starts
    ├── checkpoints/                the weights of the last steps
    ├── weights.json                the location of weights for servers, with `policy = "openai"`
    ├── heldout/<task>.<ticket>/    files of trials of held-out tasks
    ├── heldout_trials.jsonl        one line per such trial
    └── heldout.jsonl               one line per evaluation

A trial that a failed canary or a crash made void has a second line in results.jsonl. The last
line counts.

Paths in these files that lead into the run directory are relative to it, so that it can be moved.

A trial's folder is used once. If a power cut removed events from the ledger, their tickets start
again, and the second trial of a ticket writes to `<task>.<ticket>~2`. Its line in results.jsonl
names the folder.

Nothing is ever overwritten: `create` refuses a directory that holds trials or a file with one of
these names. Only the remains of a run that failed before it began are accepted.
"""

import contextlib
import itertools
import os
import re
from datetime import datetime
from pathlib import Path

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.core.ids import short_id
from plimsoll.ledger.journal.location import FILE, POINTER, Location
from plimsoll.runs.files.json_lines import LineWriter, writing
from plimsoll.runs.files.results import Row
from plimsoll.trials.record import folder_names
from plimsoll.workers.worker.trajectory_store import TRAJECTORIES

__all__ = [
    "CONFIG",
    "PART",
    "RUNS",
    "RunDirectory",
    "last_use",
    "next_use",
    "write_whole",
]

RUNS = Path("runs")
CONFIG = "config.toml"
PART = ".part"
"""The suffix of a file while it is being written."""
_LONGEST_LINE = 1 << 20
_FOLDERS = (TRAJECTORIES, "canaries", "heldout", "checkpoints")


class _StoredAs(msgspec.Struct, frozen=True):
    name: str
    path: str
    """The run's path at that time: a copy of the directory is another run."""


class RunDirectory:
    """The files of a run. Made by `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials = path / "trials"
        self.results = path / "results.jsonl"
        self.canaries = path / "canaries.jsonl"
        self.summary = path / "summary.json"
        self.config = path / CONFIG
        self.steps = path / "steps.jsonl"
        self.picture = path / "training.png"
        self.held_out = path / "heldout.jsonl"
        self.held_out_trials = path / "heldout_trials.jsonl"
        self.status = path / "status.json"
        self.request = path / "request.json"
        self.controller = path / "controller.json"
        self._stored_as = path / "stored_as.json"
        self._lines = LineWriter()
        self._is_made = False
        """True if `create` made the folder itself."""

    @classmethod
    def create(cls, out: Path | None, *, now: datetime, kind: str = "eval") -> "RunDirectory":
        """Take the folder `out`, or make a new one under `runs/` named after the kind and the
        time."""
        is_made = out is None or not out.exists()
        directory = cls(_new_folder(kind, now) if out is None else out)
        directory._is_made = is_made
        with writing(directory.path):
            directory._check_free()
            directory.trials.mkdir(parents=True, exist_ok=True)
            directory.results.touch()
        return directory

    def mend(self) -> None:
        """Remove lines that a crash cut short. Only for the controller process."""
        with writing(self.path):
            own = (self.results, self.canaries, self.steps, self.held_out, self.held_out_trials)
            for file in own:
                _mend(file)

    def discard(self, ledger: Location | None = None) -> None:
        """Remove a run that failed before its first trial. Removes only files of the run: none of
        them existed before it."""
        with contextlib.suppress(OSError):
            # In this order: if killed in between, it is still a run, or does not block the next.
            for file in (self.status, self._stored_as):
                file.unlink(missing_ok=True)
            (ledger or Location(self.path, self.path)).discard()
            for file in (self.config, self.request, self.results):
                file.unlink(missing_ok=True)
            self.trials.rmdir()
            if self._is_made:
                self.path.rmdir()

    def _check_free(self) -> None:
        """Refuse a folder that holds files a run would write."""
        if self.trials.exists() and any(self.trials.iterdir()):
            raise UsageError(
                f"{self.path} already holds trials, and every attempt is kept: "
                "choose another folder with --out"
            )
        if names := self._in_the_way():
            raise UsageError(
                f"{self.path} holds {', '.join(names)}: a run writes its own under such names, and "
                "overwrites none; choose another folder with --out, or move that away"
            )

    def _in_the_way(self) -> list[str]:
        lines = (self.results, self.canaries, self.steps)
        lines += (self.held_out, self.held_out_trials)
        others = [self.summary, self.picture, self.status, self.controller]
        others += [self.path / FILE, self.path / POINTER]
        # These are made before the settings: with them, they are of a run that never began.
        if not (self.trials.is_dir() and self.results.is_file()):
            others += [self.config, self.request]
        taken = [*filter(_has_content, lines), *filter(os.path.lexists, others)]
        folders = (self.path / name for name in _FOLDERS)
        taken += [path for path in folders if path.is_dir() and any(path.iterdir())]
        return sorted(path.name for path in taken)

    def stored_as(self) -> str:
        """The run's unique name in shared places: a storage, a project of metrics. Made once and
        stored, so that a resumed run finds its files. Only for the controller process."""
        path = str(self.path.resolve())
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            stored_as = msgspec.json.decode(self._stored_as.read_bytes(), type=_StoredAs)
            if stored_as.path == path:
                return stored_as.name
        # A new name loses no trajectory: rows have full paths of those stored under an old name.
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", self.name)
        made = _StoredAs(f"{plain}-{short_id()}", path)
        write_whole(self._stored_as, msgspec.json.encode(made), lasting=True)
        return made.name

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def trial(self, task: str, attempt: int, agent: str = "") -> Path:
        """The folder of one attempt. The agent is part of the name in a run with several."""
        return self.trials / (f"{task}.{agent}.{attempt}" if agent else f"{task}.{attempt}")

    def canary(self, task: str, number: int) -> Path:
        """The folder of one canary."""
        return self.path / "canaries" / f"{task}.{number}"

    def rollout(self, task: str, ticket: str) -> Path:
        """The folder of one ticket of the ledger."""
        return self.trials / _of_ticket(task, ticket)

    def evaluated(self, task: str, ticket: str) -> Path:
        """The folder of one ticket of an evaluation. Held-out tasks may share names with other
        tasks."""
        return self.path / "heldout" / _of_ticket(task, ticket)

    def folder_of(self, row: Row) -> Path:
        """The folder of a row's trial."""
        if row.folder:
            return self.path / row.folder
        if row.ticket:
            return self.rollout(row.task, row.ticket)
        return self.trial(row.task, row.attempt, row.agent)

    def inside(self, path: Path | str) -> str:
        """A path as written to files of the run: relative if it is inside the run directory."""
        path, here = Path(path).absolute(), self.path.absolute()
        return str(path.relative_to(here) if path.is_relative_to(here) else path)

    def stored(self, trajectory: str) -> str:
        """The full path of a trajectory, from the path in its row."""
        if not trajectory or "://" in trajectory:
            return trajectory
        path = self.path.absolute() / trajectory
        moved = self.path.absolute() / TRAJECTORIES / path.name
        # Rows of earlier versions have full paths, which are invalid once the run has moved.
        if Path(trajectory).is_absolute() and not path.exists() and moved.exists():
            return str(moved)
        return str(path)

    def next_canary(self) -> int:
        """The number of the next canary. Numbers are never reused."""
        numbers = (path.name.rpartition(".")[2] for path in (self.path / "canaries").glob("*.*"))
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)

    async def append(self, row: Row) -> None:
        """Append a finished trial; returns when its line is in the file."""
        await self._lines.write(self.results, row)

    def sync_results(self) -> None:
        """Sync the rows so far to the disk. Slow."""
        with writing(self.results), self.results.open("rb") as file:
            os.fsync(file.fileno())

    async def append_canary(self, row: Row) -> None:
        await self._lines.write(self.canaries, row)

    async def append_evaluated(self, row: Row) -> None:
        await self._lines.write(self.held_out_trials, row)

    async def append_held_out(self, measured: msgspec.Struct) -> None:
        await self._lines.write(self.held_out, measured)

    async def flush(self) -> None:
        """Wait until all queued lines are written."""
        await self._lines.flush()

    def finish(self, summary: msgspec.Struct) -> None:
        """Write the summary atomically."""
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
        write_whole(self.summary, text, lasting=True)


def next_use(folder: Path) -> Path:
    """The first name of a trial's folder that no trial has used."""
    return next(name for name in folder_names(folder) if not os.path.lexists(name))


def last_use(folder: Path) -> Path:
    """The name of a trial's folder that was used last; the usual one if none was."""
    return [folder, *itertools.takewhile(os.path.lexists, folder_names(folder))][-1]


def write_whole(path: Path, data: bytes, *, lasting: bool = False) -> None:
    """Write a file atomically, by a temporary name and a rename. `lasting`: sync it to the disk."""
    part = path.with_name(f"{path.name}{PART}")
    with writing(path):
        with part.open("wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)


def _has_content(path: Path) -> bool:
    return os.path.lexists(path) and not (path.is_file() and path.stat().st_size == 0)


def _of_ticket(task: str, ticket: str) -> str:
    return f"{task}.{ticket.replace('/', '_')}"


def _mend(path: Path) -> None:
    """Truncate an incomplete last line: the next line appended to it would be lost."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE)
        file.seek(start)
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(start + tail.rfind(b"\n") + 1)


def _new_folder(kind: str, now: datetime) -> Path:
    """Make `runs/<kind>-<time>`, with a number appended if the name is taken."""
    name = f"{kind}-{now:%Y%m%d-%H%M%S}"
    with writing(RUNS):
        RUNS.mkdir(exist_ok=True)
        number = 1
        while True:
            path = RUNS / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
            else:
                return path
