"""What the trainer asks of a policy, whoever serves it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from torch import Tensor

from plimsoll.core.versions import Version

__all__ = ["Pausing", "Policy", "Weights"]

Pausing = Callable[[], AbstractContextManager[None]]
"""Entered while the servers of a policy may be paused for new weights."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one version, as they are published."""

    tensors: Mapping[str, Tensor]
    """By their names in the model's state; whole, on the trainer's device. Nobody changes them
    before `publish` returns."""
    base: Path
    """The Hugging Face folder that config and tokenizer are from."""


class Policy(Protocol):
    """Answers agents while it is entered, with the weights that it was given last.

    Workers reach it by HTTP, wherever they run: each has a gateway before it.
    """

    @property
    def urls(self) -> tuple[str, ...]:
        """Its servers, which answer Chat Completions with token ids."""
        ...

    @property
    def key(self) -> str | None:
        """The key that they want to see."""
        ...

    @property
    def model(self) -> str | None:
        """The name that they know it by; None for their only one."""
        ...

    async def publish(self, weights: Weights | None, version: Version) -> None:
        """Returns once all that is generated from now on is of this version.

        Without weights they stay as they are, and only go by another version. Raises
        `PolicyError` where not every replica confirms it: then nothing may be committed.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
