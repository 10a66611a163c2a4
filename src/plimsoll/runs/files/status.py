"""The status of a run: `status.json`, which its controller rewrites each second."""

from pathlib import Path

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.runs.files.results import Diagnosis
from plimsoll.sandboxes.pool.stats import PoolStats
from plimsoll.workers.controller.roster import WorkerStatus

__all__ = ["RunSummary", "Status", "reached_end", "read_status"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment."""

    run: str
    state: str
    """`starting`, `running`, `stopping` or `ended`."""
    why: str
    """The reason for the end or the stop, if it is not the last step."""
    at: float
    """Seconds since the epoch."""
    seconds: float
    """The running time, including the committed steps of earlier processes."""
    step: int
    steps: int | None
    version: str
    rewards: list[float | None]
    """The mean rewards of the last steps."""
    age: int
    """The age of the last batch, in versions."""
    max_staleness: int
    trials: int
    graded: int
    void: dict[str, int]
    trials_per_second: float
    """The rate since the start of the current process."""
    running: int
    waiting: int
    """Trials that no worker has taken yet."""
    buffered: int
    """Groups that are ready for a batch."""
    requeued: int
    out: dict[str, str]
    """Quarantined and excluded tasks, with the reason."""
    heldout: dict[int, float | None]
    """The reward on held-out tasks, by the step after which it was measured."""
    canaries: str
    ledger: str = ""
    """The location of the ledger and the reason, if it is not in the run directory."""
    workers: list[WorkerStatus]
    workers_wait: str = ""
    """The resource that unplaced workers wait for, and the time; empty if none waits."""
    pool: PoolStats | None = None
    """Statistics of sandbox starts since the start of the current process, if there were any."""
    warnings: list[str] = []
    """Missing capabilities and failures of the workers' sandboxes."""
    kind: str = "run"
    """`run`, `eval`, `validate`, `trl` or `verl`."""
    total: int | None = None
    """The number of trials of an evaluation; None for a run that trains."""
    mean_reward: float | None = None
    """The mean over graded trials of an evaluation."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The object that `plimsoll run --json` prints and `summary.json` holds."""

    run: str
    path: str
    ended: str
    """The reason: `all steps are done`, or the reason for the stop."""
    done: bool
    """True if the run reached its last step, or the end of its epochs."""
    steps: int
    version: str
    trials: int
    graded: int
    void: dict[str, int]
    reward: float | None
    """The mean over all steps."""
    rewards: list[float | None]
    """The mean reward of each step."""
    heldout_before: float | None
    """The first measured reward on held-out tasks."""
    heldout_after: float | None
    """The last measured reward on held-out tasks; None with fewer than two evaluations."""
    skipped: dict[str, int]
    """The number of steps that changed no weights, by the reason."""
    max_age: int
    """The greatest age that was trained on, in versions."""
    eta: int
    """η: the greatest age that is allowed."""
    seconds: float
    trials_per_second: float
    left_over: int
    """Groups that are ready, but too few for a batch."""
    quarantined: list[str]
    """Quarantined and excluded tasks."""
    out: dict[str, str]
    """The reason for each of them."""
    problems: list[str] | None
    """Problems of the ledger; None if it was not checked."""
    breaker: Diagnosis | None = None
    pool: PoolStats | None = None
    """Statistics of sandbox starts since the start of the current process, if there were any."""
    warnings: list[str] = []
    """Missing capabilities and failures of the workers' sandboxes."""


class _End(msgspec.Struct):
    """The part of a `RunSummary` that says whether the run is done."""

    done: bool


def reached_end(status: Status, summary: Path) -> bool:
    """Whether a run reached its last step, the end of its epochs, or its last trial."""
    if status.total is not None:
        return status.trials >= status.total
    if status.steps is not None:
        return status.step >= status.steps
    # Of a run over epochs, only the summary says it.
    try:
        return status.state == "ended" and msgspec.json.decode(summary.read_bytes(), type=_End).done
    except (OSError, msgspec.MsgspecError):
        return False


def read_status(path: Path) -> Status:
    """The last status that a run's controller wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: not the status of a run ({error})") from error
