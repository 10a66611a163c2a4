"""What shows figures elsewhere."""

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Sink"]


class Sink(Protocol):
    """Takes figures. It may fail: a run never ends for it."""

    @property
    def name(self) -> str: ...

    def write(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...
