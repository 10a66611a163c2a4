"""The workers of a run, made from its plan."""

import os
from typing import TYPE_CHECKING

import msgspec

from plimsoll.config.file import Config
from plimsoll.config.run import WorkersConfig
from plimsoll.gateway.upstreams.factory import KEY_VARIABLE
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.plan import Plan
from plimsoll.workers.controller.protocol import Workers
from plimsoll.workers.controller.roster import WorkerTimeouts
from plimsoll.workers.messages import EnvironmentOptions, WorkerSpec
from plimsoll.workers.worker.policy_service import ServedPolicy

if TYPE_CHECKING:
    from plimsoll.workers.engines.protocol import Engine

__all__ = ["environment_options", "make_engine", "make_workers", "worker_spec"]


def make_workers(plan: Plan, directory: RunDirectory, *, in_process: bool = False) -> Workers:
    """Make the workers of a run. They start when they are entered.

    `in_process`: one worker on this event loop, for evaluations of a few trials.
    """
    workers = plan.config.workers
    if in_process:
        from plimsoll.workers.controller.in_process import InProcessWorker

        return InProcessWorker(environment_options(plan, directory), workers.concurrency)
    # Imported here: a worker in this process needs no sockets.
    from plimsoll.workers.controller.supervisor import Supervisor, SupervisorOptions

    return Supervisor(
        make_engine(workers, directory.name),
        worker_spec(plan, directory),
        number=workers.number,
        options=SupervisorOptions(timeouts=WorkerTimeouts(start_within=workers.start_seconds)),
    )


def make_engine(workers: WorkersConfig, run: str) -> "Engine":
    """Make the engine of a run. It starts nothing before it is entered."""
    if workers.engine == "process":
        from plimsoll.workers.engines.process import ProcessEngine

        return ProcessEngine()
    # Imported here: nothing else needs Ray.
    from plimsoll.workers.engines.ray import RayEngine, RayOptions

    ray = workers.ray
    return RayEngine(
        RayOptions(
            address=ray.address,
            resources=dict(ray.resources),
            labels=dict(ray.labels),
            run=run,
        )
    )


_HOME = "PLIMSOLL_HOME"


def worker_spec(plan: Plan, directory: RunDirectory) -> WorkerSpec:
    """The specification of each worker, the same for all: its options, limits and variables."""
    workers = plan.config.workers
    options = environment_options(plan, directory)
    return WorkerSpec(
        run=directory.name,
        options=options,
        concurrency=workers.concurrency,
        memory_mb=workers.memory_mb,
        grace_seconds=workers.grace_seconds,
        environment=_sandbox_variables(plan.config) | plan.environment | _policy_key(plan.served),
    )


def environment_options(plan: Plan, directory: RunDirectory) -> EnvironmentOptions:
    """The part of the run that its workers need."""
    stores_elsewhere = plan.config.storage.trajectories is not None
    config = _with_policy(plan.config, plan.served).model_dump(mode="json")
    return EnvironmentOptions(
        config=msgspec.Raw(msgspec.json.encode(config)),
        directory=str(directory.path.absolute()),
        stored_as=directory.stored_as() if stores_elsewhere else "",
        capabilities=None if plan.policy is None else plan.policy.found,
    )


def _with_policy(config: Config, served: ServedPolicy | None) -> Config:
    """Add the current servers, which are not in the run's own config."""
    policy: dict[str, object] = {}
    if config.training.policy is not None:
        own = config.policy
        policy["seed"] = config.training.seed if own.seed is None else own.seed
        policy["sampling"] = own.sampling or "model"
    if served is not None:
        policy |= {"urls": served.urls, "model": served.model or config.policy.model}
    return config.model_copy(update={"policy": config.policy.model_copy(update=policy)})


def _sandbox_variables(config: Config) -> dict[str, str]:
    """Variables that locate sandboxes. If workers had other values than the run, it would look for
    their sandboxes in another place."""
    docker = config.run.backend == "docker"
    return {
        name: value
        for name, value in os.environ.items()
        if name == _HOME or (docker and name.startswith("DOCKER_"))
    }


def _policy_key(served: ServedPolicy | None) -> dict[str, str]:
    """The key of the policy's servers: workers on other hosts lack this process's environment."""
    given = None if served is None else served.key
    key = given or os.environ.get(KEY_VARIABLE)
    return {} if key is None else {KEY_VARIABLE: key}
