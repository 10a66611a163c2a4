"""The policy as the trainer sees it: where it is served, and the publication of weights."""

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
"""Makes a context manager that is entered while servers may be paused for new weights."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one version for publication."""

    tensors: Mapping[str, Tensor]
    """Whole tensors by their names in the model's state, on the trainer's device. They must not
    change before `publish` returns."""
    base: Path
    """The Hugging Face folder with config and tokenizer."""


class Policy(Protocol):
    """Serves the last published weights while it is entered.

    Workers reach it by HTTP through their gateways.
    """

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URLs of its replicas, which answer Chat Completions with token ids."""
        ...

    @property
    def key(self) -> str | None:
        """The API key of the replicas."""
        ...

    @property
    def model(self) -> str | None:
        """The model name on the replicas; None for their only model."""
        ...

    async def publish(self, weights: Weights | None, version: Version) -> None:
        """Return once every token generated from now on is of this version.

        Without weights, the current ones get a new version. Raises `PolicyError` if not every
        replica confirms: then the version must not be committed.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
