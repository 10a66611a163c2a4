"""What a run's workers are started with."""

import os

import msgspec

from plimsoll.gateway.upstreams.make import KEY_VARIABLE
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.plan import Plan
from plimsoll.workers.messages import WorkerSpec

__all__ = ["MAKER", "worker_spec"]

MAKER = "plimsoll.runs.place:trial_place"


def worker_spec(plan: Plan, directory: RunDirectory) -> WorkerSpec:
    """The same for each worker: where and how it runs trials, and what it needs for that."""
    workers = plan.config.workers
    options = {
        "config": plan.config.model_dump(mode="json"),
        "directory": str(directory.path.absolute()),
    }
    return WorkerSpec(
        run=directory.name,
        maker=MAKER,
        options=msgspec.Raw(msgspec.json.encode(options)),
        concurrency=workers.concurrency,
        memory_mb=workers.memory_mb,
        grace_seconds=workers.grace_seconds,
        environment=plan.environment | _policy_key(),
    )


def _policy_key() -> dict[str, str]:
    """The key of the policy's servers: workers on other hosts do not have this process's."""
    key = os.environ.get(KEY_VARIABLE)
    return {} if key is None else {KEY_VARIABLE: key}
