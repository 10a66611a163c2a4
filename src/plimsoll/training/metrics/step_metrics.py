"""The figures of a step, as one line of `metrics.jsonl`. Imports no torch: the CLI reads it too."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import msgspec

from plimsoll.runs.files.directory import write_whole

__all__ = ["Seconds", "StepMetrics", "StepReport", "flatten", "last_metrics", "repair_journal"]


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The learner's report of one step. A figure without data, or not finite, is None."""

    loss: float | None = None
    grad_norm: float | None = None
    """Before clipping; the largest of the updates of the step."""
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
    """On each rank."""
    left_out: int = 0
    """Skipped updates: their loss or gradient was not finite."""
    seconds: float
    skipped: str = ""
    """The reason why the weights did not change; empty if they did."""


_LINE_BYTES = 4096
"""An upper bound of the size of a line."""


class Seconds(msgspec.Struct, kw_only=True):
    """The time of a step by phase."""

    wait: float = 0.0
    """Waiting for a batch: the learner is idle."""
    read: float = 0.0
    """Reading trajectories from storage."""
    update: float = 0.0
    checkpoint: float = 0.0
    publish: float = 0.0
    """Until every replica serves the new weights."""


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One step: the batch, the learner's report, the time. One line of `metrics.jsonl`."""

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
    untrainable: int = 0
    """Answers of graded members whose tokens cannot be trained on."""
    void: dict[str, int]
    """Void trials of the whole run so far, by cause."""
    sandbox_seconds: float | None
    """The median time that trials of the batch waited for a sandbox."""
    tokens_per_second: float
    """Trained tokens over the time of the whole step."""
    seconds: Seconds
    update: StepReport


def flatten(line: msgspec.Struct) -> dict[str, float]:
    """The numbers of a line by name; those of nested tables as `table/name`."""
    return dict(_numbers("", cast("dict[str, object]", msgspec.to_builtins(line))))


def _numbers(prefix: str, values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        match value:
            case bool():
                pass
            case int() | float():
                yield f"{prefix}{name}", float(value)
            case dict():
                yield from _numbers(f"{prefix}{name}/", cast("dict[str, object]", value))
            case _:
                pass


class _Numbered(msgspec.Struct):
    """The step number of a line, whatever else the line holds."""

    step: int


def repair_journal(path: Path, *, up_to: int) -> int:
    """Keep one line for each step up to `up_to`, in order. Returns the size of the file.

    Removes lines of steps that a crash undid, and incomplete lines.
    """
    data = path.read_bytes() if path.exists() else b""
    lines: dict[int, bytes] = {}
    for line in data.splitlines(keepends=True):
        with contextlib.suppress(msgspec.MsgspecError):
            step = msgspec.json.decode(line, type=_Numbered).step
            if step <= up_to and line.endswith(b"\n"):
                lines[step] = line
    repaired = b"".join(lines[step] for step in sorted(lines))
    if repaired != data or not path.exists():
        write_whole(path, repaired)
    return len(repaired)


def last_metrics(path: Path, most: int, *, up_to: int) -> list[StepMetrics]:
    """The last steps up to `up_to`, in order. Reads only the end of the file."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - (most + 1) * _LINE_BYTES)
            file.seek(begin)
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    steps: dict[int, StepMetrics] = {}
    for data in lines[1:] if begin else lines:
        with contextlib.suppress(msgspec.MsgspecError):  # an incomplete line
            line = msgspec.json.decode(data, type=StepMetrics)
            if line.step <= up_to:
                steps[line.step] = line
    return [steps[number] for number in sorted(steps)[-most:]]
