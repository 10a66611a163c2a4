"""What is kept of each step: one line of `metrics.jsonl`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import msgspec

from plimsoll.training.figures import StepReport

__all__ = ["Seconds", "StepMetrics", "flat", "read_metrics"]


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
    graded: int
    withheld: int
    void: dict[str, int]
    """Trials of the whole run so far that came to nothing, by their cause."""
    sandbox_seconds: float | None
    """The median time that the batch's trials waited for their sandbox."""
    tokens_per_second: float
    """Tokens trained on, over the whole of the step."""
    seconds: Seconds
    update: StepReport


def flat(line: msgspec.Struct) -> dict[str, float]:
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


def read_metrics(path: Path, *, up_to: int | None = None) -> list[StepMetrics]:
    """The steps in order; of one that was made again, the last."""
    if not path.exists():
        return []
    lines = msgspec.json.Decoder(StepMetrics).decode_lines(path.read_bytes())
    steps = {line.step: line for line in lines if up_to is None or line.step <= up_to}
    return [steps[number] for number in sorted(steps)]
