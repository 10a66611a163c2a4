"""How a run fares: `status.json`, which its controller writes anew each second."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.runs.results import Diagnosis
from plimsoll.sandboxes.pool.stats import PoolStats
from plimsoll.workers.controller.roster import WorkerStatus

__all__ = ["RunSummary", "Status", "Step", "read_status", "surviving"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was committed: one line of `steps.jsonl`."""

    step: int
    version: str
    reward: float | None
    """The mean over graded members."""
    age: int
    """How many versions old the oldest token was."""
    groups: int
    graded: int
    withheld: int
    seconds: float
    """Since the step before."""
    waited: float = 0.0
    """How much of it the trainer waited for the batch."""
    sandbox_seconds: float | None = None
    """How long sandboxes of its trials took to start, in the middle."""
    skipped: str = ""
    """Why it changed nothing, where a trainer says so."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment."""

    run: str
    state: str
    """`starting`, `running`, `stopping` or `ended`."""
    why: str
    """What it ended or is being stopped for, where that is not the last step."""
    at: float
    """Seconds since the epoch."""
    seconds: float
    """How long it has been running since it was last started."""
    step: int
    steps: int | None
    version: str
    rewards: list[float | None]
    """Of the last steps."""
    age: int
    """Of the last batch."""
    max_staleness: int
    trials: int
    graded: int
    void: dict[str, int]
    trials_per_second: float
    """Since it was last started."""
    running: int
    waiting: int
    """Trials that no worker has taken yet."""
    buffered: int
    """Groups that are ready for a batch."""
    requeued: int
    out: dict[str, str]
    """Tasks that are not tried, or not any more, with the reason."""
    heldout: dict[int, float | None]
    """The reward on held-out tasks, by the step after which it was measured."""
    canaries: str
    ledger: str = ""
    """Where the ledger is and why, if it is not in the run directory."""
    workers: list[WorkerStatus]
    workers_wait: str = ""
    """What workers without a host wait for, and how long; empty where none does."""
    pool: PoolStats | None = None
    """How workers' sandboxes were started since the run was, where any was."""
    warnings: list[str] = []
    """What workers' sandboxes cannot do, or did not do."""
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
    """Why: `all steps are done`, or what it was stopped for."""
    done: bool
    """Whether it came to its last step, or to the end of its epochs."""
    steps: int
    version: str
    trials: int
    graded: int
    void: dict[str, int]
    reward: float | None
    """The mean over all steps."""
    rewards: list[float | None]
    """Of each step."""
    heldout_before: float | None
    """The reward on held-out tasks when it was measured first."""
    heldout_after: float | None
    """The same when it was measured last; None where that is the first time too."""
    skipped: dict[str, int]
    """Steps that changed nothing, by the reason."""
    max_age: int
    """The greatest age that was trained on, in versions."""
    eta: int
    """η: the greatest that is allowed."""
    seconds: float
    trials_per_second: float
    left_over: int
    """Groups that are ready, and too few for a batch."""
    quarantined: list[str]
    """Tasks that were not tried, or not to the end."""
    out: dict[str, str]
    """Why, for each of them."""
    problems: list[str] | None
    """What is wrong with the ledger; None where it was not checked."""
    breaker: Diagnosis | None = None
    pool: PoolStats | None = None
    """How workers' sandboxes were started since the run was, where any was."""
    warnings: list[str] = []
    """What workers' sandboxes cannot do, or did not do."""


def read_status(path: Path) -> Status:
    """The last that a run's controller wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: not the status of a run ({error})") from error


def surviving(lines: Iterable[Step], *, up_to: int) -> list[Step]:
    """The steps up to one, in order; of one that was made again, the last."""
    steps = {line.step: line for line in lines if line.step <= up_to}
    return [steps[number] for number in sorted(steps)]
