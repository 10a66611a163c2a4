"""The tables of the config that say what a run does: [run], [workers], [storage].

[run]
tasks = "tasks"
agent = "shell"
group_size = 8
batch_groups = 4
steps = 30

[workers]
number = 2
concurrency = 16

[storage]
trajectories = "s3://bucket/night-run"
ledger = "/var/lib/plimsoll/ledgers"
"""

import os
from typing import Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from plimsoll.config.table import Table
from plimsoll.core.errors import UsageError
from plimsoll.ledger.settings import MOST_MEMBERS, GroupPolicy, Settings
from plimsoll.trials.artifacts import Bounds

__all__ = [
    "RayConfig",
    "RunConfig",
    "StorageConfig",
    "WorkersConfig",
    "default_concurrency",
    "ledger_settings",
]


def default_concurrency() -> int:
    """As many trials as there are cores to use, and never fewer than two.

    A trial waits for its sandbox now and then, and a second one uses that time.
    """
    return max(2, len(os.sched_getaffinity(0)))


class RunConfig(Table):
    """What is rolled out, and by which rules."""

    tasks: StrictStr | None = None
    """The folder of a task or of tasks."""
    agent: StrictStr = "shell"
    """Who acts: oracle, nop, shell, claude-code, codex, opencode, qwen-code or mini-swe-agent."""
    backend: StrictStr = "local"
    """Where sandboxes run: local or docker."""
    steps: StrictInt | None = Field(default=None, ge=1)
    """The run ends after so many batches. Where it is left out, `epochs` says when."""
    epochs: StrictInt | None = Field(default=None, ge=1)
    """How often each task is tried by a group. Where it is left out, as often as steps need."""
    seed: StrictInt = 0
    """What the order of the tasks depends on."""
    group_size: StrictInt = Field(default=8, ge=1)
    """n: trials of one prompt that are compared with each other."""
    batch_groups: StrictInt = Field(default=4, ge=1)
    """B: groups in a batch."""
    depth: StrictInt = Field(default=1, ge=0)
    """τ: batches that may be generated ahead of the trainer."""
    max_staleness: StrictInt = Field(default=2, ge=0)
    """η: no sample is trained on that is older than so many versions; at least `depth`."""
    max_running: StrictInt | None = Field(default=None, ge=1)
    """C: trials under way at once; as many as workers have places where it is left out."""
    group_policy: GroupPolicy = "complete"
    """What becomes of a group with void members: `complete` replaces them where the task is not
    to blame, `min_graded` makes do with fewer, `void` gives the group up at once."""
    min_graded: StrictInt = Field(default=1, ge=1)
    """k: graded members that are enough under the policy `min_graded`."""
    requeues: StrictInt = Field(default=3, ge=0)
    """R: how often a prompt comes again after its group was void, before its task is out."""
    slack_seconds: StrictFloat = Field(default=60.0, gt=0)
    """How long a batch waits for a group that is due before something is done about it."""
    validates: StrictBool = Field(default=False, alias="validate")
    """Before the run begins the oracle and nop try every task of which that is not known yet,
    as `plimsoll validate` does; tasks that fail are left out, and named."""
    canary_every: StrictInt | None = Field(default=None, ge=0)
    """An oracle trial of a solvable task for every so many trials; 0 for none. Where it is left
    out: 200, and none in runs that are shorter."""


class RayConfig(Table):
    """Where Ray places workers, with the engine `ray`."""

    address: StrictStr = ""
    """An existing cluster, or `auto` for the one of this host. Where it is left out, one is
    started for the run, and ends with it."""
    resources: dict[str, StrictFloat] = Field(default_factory=dict)
    """What a worker takes of its node: CPU, GPU, memory in bytes, or a resource's own name."""
    labels: dict[str, StrictStr] = Field(default_factory=dict)
    """Labels that a node must have."""


class WorkersConfig(Table):
    """Who runs the trials."""

    engine: Literal["process", "ray"] = "process"
    """Processes of this host, or actors of Ray."""
    number: StrictInt = Field(default=1, ge=1)
    """How many workers."""
    concurrency: StrictInt = Field(default_factory=default_concurrency, ge=1)
    """Trials that each of them runs at once; one for each core, at least 2, where it is left
    out."""
    memory_mb: StrictInt | None = Field(default=None, ge=1)
    """Above this a worker takes no more trials, and is replaced when it is empty."""
    env: tuple[StrictStr, ...] = ()
    """Environment variables that workers get from the run: a shell's export does not reach the
    workers of a cluster."""
    start_seconds: StrictFloat = Field(default=120.0, gt=0)
    """How long a worker may take to start, from its placement on a host until it is ready. Waiting
    for a host, as on a Ray cluster that is still growing, does not count."""
    grace_seconds: StrictFloat = Field(default=30.0, ge=0)
    """How long running trials may go on when the run is stopped."""
    ray: RayConfig = Field(default_factory=RayConfig)


class StorageConfig(Table):
    """Where what is too much for messages goes."""

    trajectories: StrictStr | None = None
    """Any fsspec URL or folder; the run's own directory where it is left out."""
    ledger: StrictStr | None = None
    """A folder on a disk of this host, which may be the same for many runs. Where it is left out:
    the run's own directory or, if that is on a network file system, `ledgers` below
    PLIMSOLL_HOME."""
    artifacts_mb: StrictInt = Field(default=1024, ge=0)
    """The most that is kept of each artifact of a trial. One that has more is left out, and
    `not-kept.txt` of the trial says so. Holes in files count for nothing, and a file with several
    names counts once."""
    artifacts_files: StrictInt = Field(default=20_000, ge=0)
    """The most files, folders and links of each artifact."""

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.artifacts_mb << 20, self.artifacts_files)


def ledger_settings(run: RunConfig, workers: WorkersConfig, *, attempts: int = 1) -> Settings:
    """The rules that the ledger keeps. Raises `UsageError` where they contradict each other.

    `attempts` is how often an evaluation tries each task, at once.
    """
    places = workers.number * workers.concurrency
    if attempts > MOST_MEMBERS:
        raise UsageError(f"[evaluation] attempts is {attempts}; it must be at most {MOST_MEMBERS}")
    if run.max_running is not None and run.max_running < attempts:
        raise UsageError(
            f"max_running is {run.max_running} and [evaluation] attempts is {attempts}: no "
            "evaluation could ever run; max_running must be at least attempts"
        )
    return Settings(
        batch_groups=run.batch_groups,
        max_running=run.max_running or max(places, run.group_size, attempts),
        depth=run.depth,
        max_staleness=run.max_staleness,
        group_size=run.group_size,
        group_policy=run.group_policy,
        min_graded=run.min_graded,
        requeues=run.requeues,
        seed=run.seed,
    )
