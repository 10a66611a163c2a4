"""The supervisor of a run's workers and its engine, made from the config."""

from plimsoll.config.run import WorkersConfig
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.plan import Plan
from plimsoll.runs.worker_spec import worker_spec
from plimsoll.workers.controller.roster import Patience
from plimsoll.workers.controller.supervisor import Supervisor, SupervisorOptions
from plimsoll.workers.engines.process import ProcessEngine
from plimsoll.workers.engines.protocol import Engine

__all__ = ["make_engine", "make_supervisor"]


def make_supervisor(plan: Plan, directory: RunDirectory) -> Supervisor:
    """Make the supervisor of a run's workers. It starts none before it is entered."""
    workers = plan.config.workers
    return Supervisor(
        make_engine(workers, directory.name),
        worker_spec(plan, directory),
        number=workers.number,
        options=SupervisorOptions(patience=Patience(start_within=workers.start_seconds)),
    )


def make_engine(workers: WorkersConfig, run: str) -> Engine:
    """Make an engine for a run. It starts nothing before it is entered."""
    if workers.engine == "process":
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
