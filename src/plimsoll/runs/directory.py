"""The run directory: every attempt in its own folder, results as they finish, a summary.

    runs/<name>/
    ├── trials/<task>.<attempt>/    what the trial wrote: verdict.json, output, timings
    ├── canaries/<task>.<number>/   the same of each canary, where there are any
    ├── blobs/                      what is too large for a trajectory, by its digest
    ├── results.jsonl               one line a finished trial, in the order they finished
    ├── canaries.jsonl              the same of each canary
    └── summary.json                the whole run, written once at its end

What `plimsoll run` adds, whose trials are `trials/<task>.<ticket>/`:

    ├── config.toml                 the config as it was understood, with paths made absolute
    ├── ledger.db                   every rollout, from before it starts, and ledger.lock
    ├── ledger.json                 where these are, if they are elsewhere
    ├── trajectories/               what was said, a file a ticket, where no other place is named
    ├── stored_as.json              what it is called where others keep theirs, too
    ├── steps.jsonl                 one line a step that was committed
    ├── validation/<set>/           trials of tasks that were validated when it began
    ├── metrics.jsonl               one line a step of a training: losses, and where time went
    ├── training.png                a picture of a training: reward, age, start of sandboxes
    ├── checkpoints/                the weights of the last of them
    ├── weights.json                where the weights for servers are, with `policy = "openai"`
    ├── heldout/<task>.<ticket>/    what trials of held-out tasks wrote
    ├── heldout_trials.jsonl        one line each of them
    ├── heldout.jsonl               one line an evaluation
    ├── status.json                 how it fares, written anew each second
    └── controller.json             the process that drives it; gone when it ends in order

A trial that a failed canary or a crash made void has a second line in results.jsonl, which
counts.

Paths in these files that lead into the run directory are relative to it, so that it can be moved.

A trial's folder is used once. Where a power cut took events out of the ledger, their tickets are
begun again, and the second trial of one writes to `<task>.<ticket>~2`. Its line in results.jsonl
names the folder.

Nothing in it is ever overwritten: a directory that holds trials is refused, or what has the name of
a file of these. Only what is left of a run that came to nothing before it began is not in the way.
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
from plimsoll.runs.json_lines import LineWriter, writing
from plimsoll.runs.results import Row
from plimsoll.trials.record import folder_names
from plimsoll.workers.worker.trajectory_store import BLOBS, TRAJECTORIES

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
"""What the name of a file ends in while it is written."""
_LONGEST_LINE = 1 << 20
_FOLDERS = (TRAJECTORIES, "canaries", "heldout", "checkpoints")


class _StoredAs(msgspec.Struct, frozen=True):
    name: str
    path: str
    """Of the run then: a copy of its directory is another run."""


class RunDirectory:
    """Where a run keeps what it did. Made by `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials = path / "trials"
        self.blobs = path / BLOBS
        self.results = path / "results.jsonl"
        self.canaries = path / "canaries.jsonl"
        self.summary = path / "summary.json"
        self.config = path / CONFIG
        self.steps = path / "steps.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.picture = path / "training.png"
        self.held_out = path / "heldout.jsonl"
        self.held_out_trials = path / "heldout_trials.jsonl"
        self.status = path / "status.json"
        self.request = path / "request.json"
        self.controller = path / "controller.json"
        self._stored_as = path / "stored_as.json"
        self._lines = LineWriter()
        self._is_made = False
        """Whether the folder itself was not there before."""

    @classmethod
    def create(cls, out: Path | None, *, now: datetime, kind: str = "eval") -> "RunDirectory":
        """Take the folder `out`, or a new one under `runs/` named after what it is and the time."""
        is_made = out is None or not out.exists()
        directory = cls(_new_folder(kind, now) if out is None else out)
        directory._is_made = is_made
        with writing(directory.path):
            directory._check_free()
            directory.trials.mkdir(parents=True, exist_ok=True)
            directory.results.touch()
        return directory

    def mend(self) -> None:
        """Drop lines that a crash cut short. For the one process that drives the run."""
        with writing(self.path):
            own = (self.results, self.canaries, self.steps, self.held_out, self.held_out_trials)
            for file in own:
                _mend(file)

    def discard(self, ledger: Location | None = None) -> None:
        """Remove a run that came to nothing before its first trial, and no file of others: none
        of these was there when it was made."""
        with contextlib.suppress(OSError):
            # In this order: killed in between, it is a run still, or not in the way of the next.
            for file in (self.status, self._stored_as):
                file.unlink(missing_ok=True)
            (ledger or Location(self.path, self.path)).discard()
            for file in (self.config, self.results):
                file.unlink(missing_ok=True)
            self.trials.rmdir()
            if self._is_made:
                self.path.rmdir()

    def _check_free(self) -> None:
        """Refuse a folder that holds what a run would write itself."""
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
        lines = (self.results, self.canaries, self.steps, self.metrics)
        lines += (self.held_out, self.held_out_trials)
        others = [self.summary, self.picture, self.status, self.controller]
        others += [self.path / FILE, self.path / POINTER]
        # These are made before its config, so with them it is of a run that never began.
        if not (self.trials.is_dir() and self.results.is_file()):
            others.append(self.config)
        taken = [*filter(_has_content, lines), *filter(os.path.lexists, others)]
        folders = (self.path / name for name in _FOLDERS)
        taken += [path for path in folders if path.is_dir() and any(path.iterdir())]
        return sorted(path.name for path in taken)

    def stored_as(self) -> str:
        """What the run is called where others keep theirs, too, and no other is: in a storage, in
        a project of figures. Made once, and kept: a run that goes on finds what it stored. For the
        one process that drives the run."""
        path = str(self.path.resolve())
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            kept = msgspec.json.decode(self._stored_as.read_bytes(), type=_StoredAs)
            if kept.path == path:
                return kept.name
        # What was stored elsewhere under another name is found: rows have whole paths of it.
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", self.name)
        made = _StoredAs(f"{plain}-{short_id()}", path)
        write_whole(self._stored_as, msgspec.json.encode(made), lasting=True)
        return made.name

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def trial(self, task: str, attempt: int, agent: str = "") -> Path:
        """The folder of one attempt. The agent is named where a run has several."""
        return self.trials / (f"{task}.{agent}.{attempt}" if agent else f"{task}.{attempt}")

    def canary(self, task: str, number: int) -> Path:
        """The folder of one canary."""
        return self.path / "canaries" / f"{task}.{number}"

    def rollout(self, task: str, ticket: str) -> Path:
        """The folder of one ticket of the ledger."""
        return self.trials / _of_ticket(task, ticket)

    def evaluated(self, task: str, ticket: str) -> Path:
        """The same of an evaluation. Held-out tasks may have the names of others."""
        return self.path / "heldout" / _of_ticket(task, ticket)

    def folder_of(self, row: Row) -> Path:
        """The folder that a row's trial wrote."""
        if row.folder:
            return self.path / row.folder
        if row.ticket:
            return self.rollout(row.task, row.ticket)
        return self.trial(row.task, row.attempt, row.agent)

    def inside(self, path: Path | str) -> str:
        """A path as it is written to files of the run: relative to it, where it leads into it."""
        path, here = Path(path).absolute(), self.path.absolute()
        return str(path.relative_to(here) if path.is_relative_to(here) else path)

    def stored(self, trajectory: str) -> str:
        """The whole path of a trajectory, by what its row says."""
        if not trajectory or "://" in trajectory:
            return trajectory
        path = self.path.absolute() / trajectory
        moved = self.path.absolute() / TRAJECTORIES / path.name
        # Rows of earlier versions have whole paths, which lead nowhere once the run has moved.
        if Path(trajectory).is_absolute() and not path.exists() and moved.exists():
            return str(moved)
        return str(path)

    def next_canary(self) -> int:
        """The number of the next canary: none is ever used again."""
        numbers = (path.name.rpartition(".")[2] for path in (self.path / "canaries").glob("*.*"))
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)

    async def append(self, row: Row) -> None:
        """Keep a finished trial; returns when its line is in the file."""
        await self._lines.write(self.results, row)

    def settle(self) -> None:
        """Put the rows so far on the disk itself. Takes its time."""
        with writing(self.results), self.results.open("rb") as file:
            os.fsync(file.fileno())

    async def append_canary(self, row: Row) -> None:
        await self._lines.write(self.canaries, row)

    async def append_step(self, step: msgspec.Struct) -> None:
        await self._lines.write(self.steps, step)

    async def append_evaluated(self, row: Row) -> None:
        await self._lines.write(self.held_out_trials, row)

    async def append_held_out(self, measured: msgspec.Struct) -> None:
        await self._lines.write(self.held_out, measured)

    async def flush(self) -> None:
        """Wait until no line is on its way to a file."""
        await self._lines.flush()

    def finish(self, summary: msgspec.Struct) -> None:
        """Write the summary: whole, or not there."""
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
        write_whole(self.summary, text, lasting=True)


def next_use(folder: Path) -> Path:
    """The first name of a trial's folder that no trial has used."""
    return next(name for name in folder_names(folder) if not os.path.lexists(name))


def last_use(folder: Path) -> Path:
    """The name of a trial's folder that a trial used last; the usual one where none did."""
    return [folder, *itertools.takewhile(os.path.lexists, folder_names(folder))][-1]


def write_whole(path: Path, data: bytes, *, lasting: bool = False) -> None:
    """Write a file under a temporary name and rename it. `lasting`: onto the disk itself."""
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
    """Cut off a last line without its end: what is appended would be lost with it."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE)
        file.seek(start)
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(start + tail.rfind(b"\n") + 1)


def _new_folder(kind: str, now: datetime) -> Path:
    """Make `runs/<kind>-<time>`, with a number behind it where another run took the name."""
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
