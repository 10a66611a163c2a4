"""The trackio sink."""

from collections.abc import Mapping
from typing import Protocol, cast

import trackio  # pyright: ignore[reportMissingImports]

__all__ = ["Trackio"]


class _Run(Protocol):
    """The used part of a trackio run."""

    def log(self, metrics: dict[str, float], step: int | None = None) -> None: ...

    def finish(self) -> None: ...


class _Module(Protocol):
    def init(self, **options: object) -> _Run: ...


class Trackio:
    """A run of a project, resumed if it exists. trackio identifies it by its name, which must be
    unique."""

    name = "trackio"

    def __init__(self, project: str, run: str, config: Mapping[str, object]) -> None:
        self._run = cast("_Module", trackio).init(
            project=project, name=run, resume="allow", config=dict(config)
        )

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()
