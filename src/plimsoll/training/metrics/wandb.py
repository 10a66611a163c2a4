"""The Weights & Biases sink."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

import wandb  # pyright: ignore[reportMissingImports]

__all__ = ["Wandb"]


class _Run(Protocol):
    """The used part of a wandb run."""

    def log(self, data: Mapping[str, float]) -> None: ...

    def define_metric(self, name: str, step_metric: str | None = None) -> object: ...

    def finish(self) -> None: ...


class _Module(Protocol):
    def init(self, **options: object) -> _Run: ...


class Wandb:
    """A run of a project, resumed if it exists. `run` is its unique id, `shown` its display
    name."""

    name = "Weights & Biases"

    def __init__(
        self, project: str, run: str, shown: str, folder: Path, config: Mapping[str, object]
    ) -> None:
        self._run = cast("_Module", wandb).init(
            project=project,
            name=shown,
            id=run,
            resume="allow",
            dir=str(folder),
            config=dict(config),
        )
        # The step counter of wandb only increases, but a resumed run goes back.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({**figures, "step": step})

    def close(self) -> None:
        self._run.finish()
