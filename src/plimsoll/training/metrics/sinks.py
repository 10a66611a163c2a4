"""The sinks that a config asks for."""

import asyncio
import functools
import importlib.util
import logging
from collections.abc import Callable

from plimsoll.core.errors import UsageError
from plimsoll.runs.config import Config
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.training_config import MetricsConfig
from plimsoll.training.metrics.sink import Sink, why
from plimsoll.training.own_thread import OwnThread

__all__ = ["check_sinks", "make_sinks"]

_SECONDS = 120.0
"""For a sink to be there. It may log in somewhere."""
_log = logging.getLogger(__name__)


def check_sinks(config: MetricsConfig) -> None:
    """Raises where one is asked for that is not installed."""
    wanted = {
        "tensorboard": ("tensorboardX", config.tensorboard),
        "wandb": ("wandb", config.wandb),
        "trackio": ("trackio", config.trackio),
    }
    for key, (module, is_wanted) in wanted.items():
        if is_wanted and importlib.util.find_spec(module) is None:
            raise UsageError(
                f"[metrics] {key} needs {module}, which is not installed: "
                f"pip install 'plimsoll-rl[{key}]', or leave it out"
            )


async def make_sinks(config: Config, directory: RunDirectory, *, begin: int) -> list[Sink]:
    """All that are asked for and can be had. `begin` is the step that the run goes on from."""
    makers = _makers(config, directory, begin)
    found: list[Sink] = []
    for name, make in makers.items():
        thread = OwnThread(name)  # a daemon: one that hangs holds up no end of a process
        try:
            async with asyncio.timeout(_SECONDS):
                found.append(await thread.do(make))
        except Exception as error:  # noqa: BLE001 - whatever a sink's own code raises: it is left out
            _log.warning(
                "no figures go to %s: %s; metrics.jsonl has them", name, why(error, _SECONDS)
            )
        finally:
            thread.close()
    return found


def _makers(config: Config, directory: RunDirectory, begin: int) -> dict[str, Callable[[], Sink]]:
    # Imported where it is made: each is there only where it is installed.
    metrics, told = config.metrics, config.model_dump(mode="json")

    def tensorboard() -> Sink:
        from plimsoll.training.metrics.tensorboard import TensorBoard

        return TensorBoard(directory.path / "tensorboard", begin=begin)

    def wandb(project: str) -> Sink:
        from plimsoll.training.metrics.wandb import Wandb

        return Wandb(project, directory.stored_as(), directory.name, directory.path, told)

    def trackio(project: str) -> Sink:
        from plimsoll.training.metrics.trackio import Trackio

        return Trackio(project, directory.stored_as(), told)

    makers: dict[str, Callable[[], Sink]] = {}
    if metrics.tensorboard:
        makers["TensorBoard"] = tensorboard
    if metrics.wandb:
        makers["Weights & Biases"] = functools.partial(wandb, metrics.wandb)
    if metrics.trackio:
        makers["trackio"] = functools.partial(trackio, metrics.trackio)
    return makers
