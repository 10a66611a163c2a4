"""The figures of steps: `steps.jsonl`, one line per step, in order. The CLI reads it too."""

import contextlib
import os
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

import msgspec

from plimsoll.runs.files.directory import write_whole
from plimsoll.runs.files.json_lines import writing

__all__ = [
    "Seconds",
    "Step",
    "StepReport",
    "StepsFile",
    "TrainerFigures",
    "drop_undone",
    "last_steps",
    "surviving",
]

_LINE_BYTES = 4096
"""An upper bound of the size of a line."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The learner's report of one step. A figure without data, or not finite, is None."""

    loss: float | None = None
    grad_norm: float | None = None
    """The norm before clipping; the largest of the updates of the step."""
    kl: float | None = None
    """The KL distance of the weights at the start of the step from those that generated."""
    reference_kl: float | None = None
    entropy: float | None = None
    ratio_mean: float | None = None
    ratio_max: float | None = None
    clipped: float | None = None
    """The share of tokens whose gradient the clip removes."""
    weight_mean: float | None = None
    truncated: float | None = None
    """The share of tokens whose weight exceeds the cap."""
    value_loss: float | None = None
    tokens: int
    """Trained tokens only."""
    samples: int
    learning_rate: float
    micro_batches: int = 0
    """The number of micro-batches on each rank."""
    left_out: int = 0
    """Skipped updates: their loss or gradient was not finite."""
    seconds: float
    skipped: str = ""
    """The reason why the weights did not change; empty if they did."""


class TrainerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's part of a step's figures."""

    update: StepReport
    update_seconds: float
    read_seconds: float | None = None
    """Reading trajectories from storage."""
    untrainable: int = 0
    """Answers of graded members whose tokens cannot be trained on."""


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a step by phase. A phase that did not happen, or was not measured, is None."""

    total: float
    """The time since the previous step."""
    wait: float
    """Waiting for a batch: the trainer is idle."""
    read: float | None = None
    """Reading trajectories from storage."""
    update: float | None = None
    checkpoint: float | None = None
    publish: float | None = None
    """Until every replica serves the new weights."""

    @property
    def phases(self) -> float:
        """The time of all phases: `total` without evaluations and the like between two steps."""
        phases = (self.wait, self.read, self.update, self.checkpoint, self.publish)
        return sum(one for one in phases if one is not None)

    def rate(self, number: int) -> float | None:
        """A number per second of the phases; None if they took no time."""
        return round(number / self.phases, 1) if self.phases else None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step: the batch, the time, the trainer's figures. One line of `steps.jsonl`."""

    step: int
    version: str
    at: float
    """Seconds since the epoch."""
    reward: float | None
    """The mean over graded members."""
    age: int
    """The age of the oldest token, in versions."""
    groups: int
    flat_groups: int = 0
    """Groups whose rewards are all equal: their advantages are 0."""
    graded: int
    withheld: int
    void: dict[str, int] = {}
    """Void trials of the whole run so far, by cause."""
    sandbox_seconds: float | None = None
    """The median time that trials of the batch waited for a sandbox."""
    skipped: str = ""
    """The trainer's reason, if the step changed no weights."""
    seconds: Seconds
    untrainable: int | None = None
    """Answers of graded members whose tokens cannot be trained on."""
    tokens_per_second: float | None = None
    """Trained tokens over the time of all phases."""
    update: StepReport | None = None
    """None if nothing is trained, or the trainer reports nothing."""


class StepsFile:
    """Writes the lines of steps. Only for the controller process, one call at a time.

    The line of a step is written before its commit, so that a crash leaves no committed step
    without a line, and replaced by the complete one after it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end: int | None = None
        """The size of the lines of finished steps, in bytes; None before the first write."""
        self._preliminary = b""
        """The line after them, of a step that is not finished."""

    def write(self, step: Step, *, is_complete: bool) -> None:
        """Write a line after those of finished steps. Raises `UsageError` if the disk fails."""
        data = msgspec.json.encode(step) + b"\n"
        with writing(self._path):
            self._path.touch()
            with self._path.open("r+b", buffering=0) as file:
                if self._end is None:
                    self._end = file.seek(0, os.SEEK_END)
                try:
                    _replace_end(file, self._end, data)
                except OSError:
                    with contextlib.suppress(OSError):  # the step may be committed: keep its line
                        _replace_end(file, self._end, self._preliminary)
                    raise
        self._preliminary = b"" if is_complete else data
        if is_complete:
            self._end += len(data)


def _replace_end(file: FileIO, begin: int, data: bytes) -> None:
    """Replace everything from `begin` on."""
    file.seek(begin)
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
    file.truncate()


class _Numbered(msgspec.Struct):
    """The step number of a line, whatever else the line holds."""

    step: int


def drop_undone(path: Path, *, up_to: int) -> None:
    """Keep one line for each step up to `up_to`, in order.

    Removes lines of steps that a crash undid, and damaged lines.
    """
    if not path.exists():
        return
    data = path.read_bytes()
    lines: dict[int, bytes] = {}
    for line in data.splitlines(keepends=True):
        with contextlib.suppress(msgspec.MsgspecError):
            step = msgspec.json.decode(line, type=_Numbered).step
            if step <= up_to and line.endswith(b"\n"):
                lines[step] = line
    kept = b"".join(lines[step] for step in sorted(lines))
    if kept != data:
        write_whole(path, kept, lasting=True)


def surviving(lines: Iterable[Step], *, up_to: int) -> list[Step]:
    """The steps up to a number, in order. If a step was repeated, its last line counts."""
    steps = {line.step: line for line in lines if line.step <= up_to}
    return [steps[number] for number in sorted(steps)]


def last_steps(path: Path, most: int, *, up_to: int) -> list[Step]:
    """The last steps up to `up_to`, in order. Reads only the end of the file."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - (most + 1) * _LINE_BYTES)
            file.seek(begin)
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    steps: list[Step] = []
    for data in lines[1:] if begin else lines:
        with contextlib.suppress(msgspec.MsgspecError):  # an incomplete line
            steps.append(msgspec.json.decode(data, type=Step))
    return surviving(steps, up_to=up_to)[-most:]
