"""What is known of a step of the learner, in figures. Imports no torch: others read it too.

What is kept of each step: one line of `metrics.jsonl`.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import msgspec

from plimsoll.runs.directory import write_whole

__all__ = ["Seconds", "StepMetrics", "StepReport", "flatten", "last_metrics", "repair_journal"]


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A step in figures. One is None where no token gave it, or where it is not finite."""

    loss: float | None = None
    grad_norm: float | None = None
    """Before it was clipped; the largest where a step has several updates."""
    kl: float | None = None
    """How far the weights at the start of the step are from those that generated."""
    reference_kl: float | None = None
    entropy: float | None = None
    ratio_mean: float | None = None
    ratio_max: float | None = None
    clipped: float | None = None
    """The share of tokens whose gradient the clip takes away."""
    weight_mean: float | None = None
    truncated: float | None = None
    """The share of tokens that would weigh more than the cap."""
    value_loss: float | None = None
    tokens: int
    """Those that are trained on; others are not counted."""
    samples: int
    learning_rate: float
    micro_batches: int = 0
    """On each rank."""
    left_out: int = 0
    """Updates whose loss or gradient was not finite."""
    seconds: float
    skipped: str = ""
    """Why the weights are as they were."""


_LINE_BYTES = 4096
"""More than a line has."""


class Seconds(msgspec.Struct, kw_only=True):
    """Where the time of a step went, as the trainer sees it."""

    wait: float = 0.0
    """For a batch: the learner is idle."""
    read: float = 0.0
    """Trajectories from storage."""
    update: float = 0.0
    checkpoint: float = 0.0
    publish: float = 0.0
    """Until every replica had the new weights."""


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One step: the batch, what the learner made of it, how long it took."""

    step: int
    version: str
    at: float
    """Seconds since the epoch."""
    reward: float | None
    """The mean over graded members."""
    age: int
    """How many versions old the oldest token was."""
    groups: int
    flat_groups: int = 0
    """Those whose rewards are all equal: advantages over the group are 0."""
    graded: int
    withheld: int
    untrainable: int = 0
    """Answers of graded members whose tokens cannot be trained on, as the server returned them."""
    void: dict[str, int]
    """Trials of the whole run so far that came to nothing, by their cause."""
    sandbox_seconds: float | None
    """The median time that the batch's trials waited for their sandbox."""
    tokens_per_second: float
    """Tokens trained on, over the whole of the step."""
    seconds: Seconds
    update: StepReport


def flatten(line: msgspec.Struct) -> dict[str, float]:
    """The numbers of a line by their names, those of tables in it as `table/name`."""
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
    """Of a line, whatever else it holds."""

    step: int


def repair_journal(path: Path, *, up_to: int) -> int:
    """Leave one line for each step up to one, in order; the length of the file then.

    Lines of steps that a crash undid go, and what it cut short.
    """
    data = path.read_bytes() if path.exists() else b""
    kept: dict[int, bytes] = {}
    for line in data.splitlines(keepends=True):
        with contextlib.suppress(msgspec.MsgspecError):
            step = msgspec.json.decode(line, type=_Numbered).step
            if step <= up_to and line.endswith(b"\n"):
                kept[step] = line
    mended = b"".join(kept[step] for step in sorted(kept))
    if mended != data or not path.exists():
        write_whole(path, mended)
    return len(mended)


def last_metrics(path: Path, most: int, *, up_to: int) -> list[StepMetrics]:
    """The last steps of those up to one, in order; the rest of the file is not read."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - (most + 1) * _LINE_BYTES)
            file.seek(begin)
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    steps: dict[int, StepMetrics] = {}
    for data in lines[1:] if begin else lines:
        with contextlib.suppress(msgspec.MsgspecError):  # one that is just being written
            line = msgspec.json.decode(data, type=StepMetrics)
            if line.step <= up_to:
                steps[line.step] = line
    return [steps[number] for number in sorted(steps)[-most:]]
