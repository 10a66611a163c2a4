"""The TensorBoard sink: event files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from tensorboardX import (  # pyright: ignore[reportMissingTypeStubs]
    SummaryWriter,
)

__all__ = ["TensorBoard"]


class _Writer(Protocol):
    """The used part of tensorboardX."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in a folder. Purges existing steps after `begin`."""

    name = "TensorBoard"

    def __init__(self, folder: Path, *, begin: int) -> None:
        purge = begin + 1 if folder.exists() else None
        self._writer = cast("_Writer", SummaryWriter(str(folder), purge_step=purge))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
