"""Tables about a run: [run], [breaker], [workers] and [storage].

[run]
tasks = "tasks"
agent = "shell"
group_size = 8
batch_groups = 4
steps = 30

[breaker]
require_validation = true

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

__all__ = [
    "BreakerConfig",
    "RayConfig",
    "RunConfig",
    "StorageConfig",
    "WorkersConfig",
    "default_concurrency",
]


def default_concurrency() -> int:
    """The number of usable cores, at least 2: a second trial uses the time that one waits."""
    return max(2, len(os.sched_getaffinity(0)))


class RunConfig(Table):
    """Tasks, agent, and the rules of groups and batches."""

    tasks: StrictStr | None = None
    """The folder of a task or of tasks."""
    agent: StrictStr = "shell"
    """oracle, nop, shell, claude-code, codex, opencode, qwen-code or mini-swe-agent."""
    backend: StrictStr = "local"
    """The backend of sandboxes: local or docker."""
    steps: StrictInt | None = Field(default=None, ge=1)
    """The number of batches. Without it, `epochs` ends the run."""
    epochs: StrictInt | None = Field(default=None, ge=1)
    """The number of groups of each task. Without it, as many as the steps need."""
    seed: StrictInt = 0
    """The seed of the order of tasks."""
    group_size: StrictInt = Field(default=8, ge=1)
    """n: trials of one prompt, compared with each other."""
    batch_groups: StrictInt = Field(default=4, ge=1)
    """B: groups in a batch."""
    depth: StrictInt = Field(default=1, ge=0)
    """τ: batches generated ahead of the trainer."""
    max_staleness: StrictInt = Field(default=2, ge=0)
    """η: samples older than this many versions are never trained on; at least `depth`."""
    max_running: StrictInt | None = Field(default=None, ge=1)
    """C: the limit of concurrent trials; by default, the number of slots of all workers."""
    group_policy: Literal["complete", "min_graded", "void"] = "complete"
    """The rule for groups with void members: `complete` replaces them unless the task is the
    cause, `min_graded` accepts fewer graded members, `void` makes the whole group void."""
    min_graded: StrictInt = Field(default=1, ge=1)
    """k: graded members that suffice under the policy `min_graded`."""
    requeues: StrictInt = Field(default=3, ge=0)
    """R: how often a prompt is repeated after its group was void, before its task is excluded."""
    slack_seconds: StrictFloat = Field(default=60.0, gt=0)
    """The time that a batch waits for a group that is due before the straggler rules apply."""
    validates: StrictBool = Field(default=False, alias="validate")
    """Before the run, the oracle and nop try every task without a current validation, like
    `plimsoll validate`. Tasks that fail are left out and named."""
    canary_every: StrictInt | None = Field(default=None, ge=0)
    """An oracle trial of a solvable task for every so many trials; 0 for none. By default 200, and
    none in shorter runs."""


class BreakerConfig(Table):
    """Conditions for the start of a run."""

    require_validation: StrictBool = False
    """Every task must be validated on the backend."""
    allowed_share: StrictFloat = Field(default=0.0, ge=0.0, le=1.0)
    """The largest share of tasks that may run without that."""


class RayConfig(Table):
    """Placement of workers by Ray, with the engine `ray`."""

    address: StrictStr = ""
    """An existing cluster, or `auto` for that of this host. By default, the run starts its own
    cluster and ends it."""
    resources: dict[str, StrictFloat] = Field(default_factory=dict)
    """The resources of a worker: CPU, GPU, memory in bytes, or custom names."""
    labels: dict[str, StrictStr] = Field(default_factory=dict)
    """Labels that a node must have."""


class WorkersConfig(Table):
    """The workers that run trials."""

    engine: Literal["process", "ray"] = "process"
    """Processes of this host, or actors of Ray."""
    number: StrictInt = Field(default=1, ge=1)
    """The number of workers."""
    concurrency: StrictInt = Field(default_factory=default_concurrency, ge=1)
    """Concurrent trials of each worker; by default one a core, at least 2."""
    memory_mb: StrictInt | None = Field(default=None, ge=1)
    """A worker above this size takes no more trials and is replaced when it is empty."""
    env: tuple[StrictStr, ...] = ()
    """Names of environment variables that workers get from the run. Exports of a shell do not
    reach the workers of a cluster."""
    start_seconds: StrictFloat = Field(default=120.0, gt=0)
    """The time limit of a worker's start, from its placement on a host until it is ready. Waiting
    for a host, as on a growing Ray cluster, does not count."""
    grace_seconds: StrictFloat = Field(default=30.0, ge=0)
    """The time that running trials may continue when the run is stopped."""
    ray: RayConfig = Field(default_factory=RayConfig)


class StorageConfig(Table):
    """Storage of trajectories, ledgers and artifacts."""

    trajectories: StrictStr | None = None
    """Any fsspec URL or folder; by default, the run directory."""
    ledger: StrictStr | None = None
    """A folder on a local disk, which runs may share. By default the run directory or, if that is
    on a network file system, `ledgers` below PLIMSOLL_HOME."""
    artifacts_mb: StrictInt = Field(default=1024, ge=0)
    """The size limit of each artifact of a trial. A larger one is skipped, and `not-kept.txt` of
    the trial says so. Holes in files do not count, and hard links count once."""
    artifacts_files: StrictInt = Field(default=20_000, ge=0)
    """The limit of files, folders and links of each artifact."""
