"""Which engine starts a run's workers, made from the config."""

from plimsoll.runs.run_config import WorkersConfig
from plimsoll.workers.engines.process import ProcessEngine
from plimsoll.workers.engines.protocol import Engine

__all__ = ["make_engine"]


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
