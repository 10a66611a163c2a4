"""Metrics sinks: their protocol, and the ones that a config asks for."""

import asyncio
import functools
import importlib.util
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from plimsoll.config.file import Config
from plimsoll.config.training import MetricsConfig
from plimsoll.core.errors import UsageError
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.training.dedicated_thread import DedicatedThread

__all__ = ["Sink", "check_sinks", "failure_reason", "make_sinks"]


class Sink(Protocol):
    """Receives the figures of steps. A failing sink never ends a run."""

    @property
    def name(self) -> str: ...

    def write(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def failure_reason(error: Exception, within: float) -> str:
    """The reason why a sink is dropped; `within` is the time limit it had."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {within:g} s"
    return str(error) or type(error).__name__


_SECONDS = 120.0
"""The time limit for opening a sink, which may include a login."""
_log = logging.getLogger(__name__)


def check_sinks(config: MetricsConfig) -> None:
    """Raise `UsageError` for a configured sink that is not installed."""
    configured = {
        "tensorboard": ("tensorboardX", config.tensorboard),
        "wandb": ("wandb", config.wandb),
        "trackio": ("trackio", config.trackio),
    }
    for key, (module, is_configured) in configured.items():
        if is_configured and importlib.util.find_spec(module) is None:
            raise UsageError(
                f"[metrics] {key} needs {module}, which is not installed: "
                f"pip install 'plimsoll-rl[{key}]', or remove the key"
            )


async def make_sinks(config: Config, directory: RunDirectory, *, begin: int) -> list[Sink]:
    """Open the configured sinks; one that fails is skipped with a warning. `begin` is the step that
    the run continues from."""
    makers = _makers(config, directory, begin)
    found: list[Sink] = []
    for name, make in makers.items():
        thread = DedicatedThread(name)  # a daemon: a hanging sink does not delay the exit
        try:
            async with asyncio.timeout(_SECONDS):
                found.append(await thread.do(make))
        except Exception as error:  # noqa: BLE001 - any error of a sink's own code: it is dropped
            _log.warning(
                "no figures go to %s: %s; steps.jsonl has them",
                name,
                failure_reason(error, _SECONDS),
            )
        finally:
            thread.close()
    return found


def _makers(config: Config, directory: RunDirectory, begin: int) -> dict[str, Callable[[], Sink]]:
    # Imported when opened: each sink needs an optional package.
    metrics, settings = config.metrics, config.model_dump(mode="json")

    def tensorboard() -> Sink:
        from plimsoll.training.metrics.tensorboard import TensorBoard

        return TensorBoard(directory.path / "tensorboard", begin=begin)

    def wandb(project: str) -> Sink:
        from plimsoll.training.metrics.wandb import Wandb

        return Wandb(project, directory.stored_as(), directory.name, directory.path, settings)

    def trackio(project: str) -> Sink:
        from plimsoll.training.metrics.trackio import Trackio

        return Trackio(project, directory.stored_as(), settings)

    makers: dict[str, Callable[[], Sink]] = {}
    if metrics.tensorboard:
        makers["TensorBoard"] = tensorboard
    if metrics.wandb:
        makers["Weights & Biases"] = functools.partial(wandb, metrics.wandb)
    if metrics.trackio:
        makers["trackio"] = functools.partial(trackio, metrics.trackio)
    return makers
