"""What a run's workers are started with."""

import os

import msgspec

from plimsoll.config.file import Config
from plimsoll.gateway.upstreams.factory import KEY_VARIABLE
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.plan import Plan
from plimsoll.runs.policies import Served
from plimsoll.workers.messages import WorkerSpec

__all__ = ["MAKER", "worker_spec"]

MAKER = "plimsoll.runs.place:trial_place"
_HOME = "PLIMSOLL_HOME"


def worker_spec(plan: Plan, directory: RunDirectory) -> WorkerSpec:
    """The same for each worker: where and how it runs trials, and what it needs for that."""
    workers = plan.config.workers
    stores_elsewhere = plan.config.storage.trajectories is not None
    options = {
        "config": _with_policy(plan.config, plan.served).model_dump(mode="json"),
        "directory": str(directory.path.absolute()),
        "stored_as": directory.stored_as() if stores_elsewhere else "",
        "capabilities": None if plan.policy is None else plan.policy.found,
    }
    return WorkerSpec(
        run=directory.name,
        maker=MAKER,
        options=msgspec.Raw(msgspec.json.encode(options)),
        concurrency=workers.concurrency,
        memory_mb=workers.memory_mb,
        grace_seconds=workers.grace_seconds,
        environment=_obeyed(plan.config) | plan.environment | _policy_key(plan.served),
    )


def _with_policy(config: Config, served: Served | None) -> Config:
    """With the servers of now, which are not in the run's own config."""
    policy: dict[str, object] = {}
    if config.training.policy is not None:
        own = config.policy
        policy["seed"] = config.training.seed if own.seed is None else own.seed
        policy["sampling"] = own.sampling or "model"
    if served is not None:
        policy |= {"urls": served.urls, "model": served.model or config.policy.model}
    return config.model_copy(update={"policy": config.policy.model_copy(update=policy)})


def _obeyed(config: Config) -> dict[str, str]:
    """Variables that say where sandboxes are. Where workers had others than the run, it would
    look for their sandboxes in another place."""
    docker = config.run.backend == "docker"
    return {
        name: value
        for name, value in os.environ.items()
        if name == _HOME or (docker and name.startswith("DOCKER_"))
    }


def _policy_key(served: Served | None) -> dict[str, str]:
    """The key of the policy's servers: workers on other hosts do not have this process's."""
    given = None if served is None else served.key
    key = given or os.environ.get(KEY_VARIABLE)
    return {} if key is None else {KEY_VARIABLE: key}
