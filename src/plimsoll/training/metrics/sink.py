"""What shows figures elsewhere."""

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Sink", "why"]


class Sink(Protocol):
    """Takes figures. It may fail: a run never ends for it."""

    @property
    def name(self) -> str: ...

    def write(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def why(error: Exception, within: float) -> str:
    """Why a sink is left out, which had so many seconds."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {within:g} s"
    return str(error) or type(error).__name__
