"""The run directory: every attempt in its own folder, results as they finish, a summary.

    runs/<name>/
    ├── trials/<task>.<attempt>/    what the trial wrote: verdict.json, output, timings
    ├── canaries/<task>.<number>/   the same of each canary, where there are any
    ├── blobs/                      what is too large for a trajectory, by its digest
    ├── results.jsonl               one line a finished trial, in the order they finished
    ├── canaries.jsonl              the same of each canary
    └── summary.json                the whole run, written once at its end

A trial that a failed canary made void has a second line in results.jsonl, which counts.

Nothing in it is ever overwritten: a directory that holds trials is refused.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.runs.results import Row, Summary

__all__ = ["RunDirectory"]

RUNS = Path("runs")


class RunDirectory:
    """Where a run keeps what it did. Made by `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials = path / "trials"
        self.blobs = path / "blobs"
        self.results = path / "results.jsonl"
        self.canaries = path / "canaries.jsonl"
        self.summary = path / "summary.json"

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

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def trial(self, task: str, attempt: int, agent: str = "") -> Path:
        """The folder of one attempt. The agent is named where a run has several."""
        return self.trials / (f"{task}.{agent}.{attempt}" if agent else f"{task}.{attempt}")

    def canary(self, task: str, number: int) -> Path:
        """The folder of one canary."""
        return self.path / "canaries" / f"{task}.{number}"

    def append(self, row: Row) -> None:
        """Keep a finished trial. Opened and closed each time: a crash leaves what finished."""
        _append(self.results, row)

    def append_canary(self, row: Row) -> None:
        _append(self.canaries, row)

    def finish(self, summary: Summary) -> None:
        """Write the summary under a temporary name and rename it: whole, or not there."""
        part = self.summary.with_name("summary.json.part")
        with _writing(self.summary):
            with part.open("wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.summary)


def _append(path: Path, row: Row) -> None:
    with _writing(path), path.open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


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


@contextmanager
def _writing(path: Path) -> Generator[None]:
    """Turn what the system says about a file into one line that says what to do."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or path}: {error.strerror or error}; "
            "free some space or choose another folder with --out"
        ) from error
