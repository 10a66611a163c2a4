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
    ├── trajectories/               what was said, a file a ticket, where no other place is named
    ├── steps.jsonl                 one line a step that was committed
    ├── validation/<set>/           trials of tasks that were validated when it began
    ├── metrics.jsonl               one line a step of a training: losses, and where time went
    ├── training.png                a picture of a training: reward, age, start of sandboxes
    ├── checkpoints/                the weights of the last of them
    ├── heldout/<task>.<ticket>/    what trials of held-out tasks wrote
    ├── heldout_trials.jsonl        one line each of them
    ├── heldout.jsonl               one line an evaluation
    ├── status.json                 how it fares, written anew each second
    └── controller.json             the process that drives it; gone when it ends in order

A trial that a failed canary or a crash made void has a second line in results.jsonl, which
counts.

Nothing in it is ever overwritten: a directory that holds trials is refused.
"""

import contextlib
import os
from collections.abc import Generator
from datetime import datetime
from pathlib import Path

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.runs.results import Row

__all__ = ["CONFIG", "PART", "RUNS", "RunDirectory", "write_whole"]

RUNS = Path("runs")
CONFIG = "config.toml"
PART = ".part"
"""What the name of a file ends in while it is written."""
_LONGEST_LINE = 1 << 20


class RunDirectory:
    """Where a run keeps what it did. Made by `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials = path / "trials"
        self.blobs = path / "blobs"
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
        self.controller = path / "controller.json"

    @classmethod
    def create(cls, out: Path | None, *, now: datetime, kind: str = "eval") -> "RunDirectory":
        """Take the folder `out`, or a new one under `runs/` named after what it is and the time."""
        directory = cls(_new_folder(kind, now) if out is None else out)
        with _writing(directory.path):
            if directory.trials.exists() and any(directory.trials.iterdir()):
                raise UsageError(
                    f"{directory.path} already holds trials, and every attempt is kept: "
                    "choose another folder with --out"
                )
            directory.trials.mkdir(parents=True, exist_ok=True)
            directory.results.touch()
        return directory

    def mend(self) -> None:
        """Drop lines that a crash cut short. For the one process that drives the run."""
        with _writing(self.path):
            own = (self.results, self.canaries, self.steps, self.held_out, self.held_out_trials)
            for file in own:
                _mend(file)

    def discard(self) -> None:
        """Remove a run that came to nothing before its first trial, and no file of others."""
        with contextlib.suppress(OSError):
            own = (self.results, self.config, self.status)
            for file in (*own, *self.path.glob("ledger.*")):
                file.unlink(missing_ok=True)
            self.trials.rmdir()
            self.path.rmdir()

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

    def next_canary(self) -> int:
        """The number of the next canary: none is ever used again."""
        numbers = (path.name.rpartition(".")[2] for path in (self.path / "canaries").glob("*.*"))
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)

    def append(self, row: Row) -> None:
        """Keep a finished trial. Opened and closed each time: a crash leaves what finished."""
        _append(self.results, row)

    def append_canary(self, row: Row) -> None:
        _append(self.canaries, row)

    def append_step(self, step: msgspec.Struct) -> None:
        _append(self.steps, step)

    def append_evaluated(self, row: Row) -> None:
        _append(self.held_out_trials, row)

    def append_held_out(self, measured: msgspec.Struct) -> None:
        _append(self.held_out, measured)

    def finish(self, summary: msgspec.Struct) -> None:
        """Write the summary: whole, or not there."""
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
        write_whole(self.summary, text, lasting=True)


def write_whole(path: Path, data: bytes, *, lasting: bool = False) -> None:
    """Write a file under a temporary name and rename it. `lasting`: onto the disk itself."""
    part = path.with_name(f"{path.name}{PART}")
    with _writing(path):
        with part.open("wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)


def _of_ticket(task: str, ticket: str) -> str:
    return f"{task}.{ticket.replace('/', '_')}"


def _append(path: Path, row: msgspec.Struct) -> None:
    with _writing(path), path.open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


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
    with _writing(RUNS):
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


@contextlib.contextmanager
def _writing(path: Path) -> Generator[None]:
    """Turn what the system says about a file into one line that says what to do."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or path}: {error.strerror or error}; "
            "free some space or choose another folder with --out"
        ) from error
