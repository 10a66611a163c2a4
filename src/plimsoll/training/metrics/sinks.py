"""What shows figures elsewhere.

The sinks that a config asks for.
"""

import asyncio
import functools
import importlib.util
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from plimsoll.config.file import Config
from plimsoll.config.training import MetricsConfig
from plimsoll.core.errors import UsageError
from plimsoll.runs.directory import RunDirectory
from plimsoll.training.dedicated_thread import DedicatedThread

__all__ = ["Sink", "check_sinks", "failure_reason", "make_sinks"]


class Sink(Protocol):
    """Takes figures. It may fail: a run never ends for it."""

    @property
    def name(self) -> str: ...

    def write(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def failure_reason(error: Exception, within: float) -> str:
    """Why a sink is left out, which had so many seconds."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {within:g} s"
    return str(error) or type(error).__name__


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
        thread = DedicatedThread(name)  # a daemon: one that hangs holds up no end of a process
        try:
            async with asyncio.timeout(_SECONDS):
                found.append(await thread.do(make))
        except Exception as error:  # noqa: BLE001 - whatever a sink's own code raises: it is left out
            _log.warning(
                "no figures go to %s: %s; metrics.jsonl has them",
                name,
                failure_reason(error, _SECONDS),
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
