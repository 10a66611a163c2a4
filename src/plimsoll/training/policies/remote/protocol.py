"""What a policy asks of a server that takes new weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plimsoll.core.errors import PolicyError

__all__ = ["Target", "WeightServer", "confirm"]


@dataclass(frozen=True, slots=True)
class Target:
    """Weights that a server is to serve."""

    label: str
    """The name that the server is to know them by. No two versions of any run share one."""
    folder: Path | None = None
    """The Hugging Face folder they are in; None for those that the server has already."""


class WeightServer(Protocol):
    """One replica.

    All of it raises `Failed` where the server does not answer as it should, and `PolicyError`
    where it answers that it has not done what it was asked to.
    """

    @property
    def url(self) -> str: ...

    @property
    def stuck(self) -> str:
        """The route that was waited for when it was given up."""
        ...

    async def take(self, target: Target) -> None:
        """Returns once the server says that it serves the target. However it ends, the server
        generates again: it is never left paused."""
        ...

    async def other(self, target: Target) -> str | None:
        """What the server says that it serves, where that is not the target."""
        ...


async def confirm(server: WeightServer, target: Target) -> None:
    """Raises `PolicyError` where the server itself says that it serves something else."""
    other = await server.other(target)
    if other is not None:
        raise PolicyError(
            f"the policy at {server.url} was given the weights {target.label} and says that it "
            f"serves {other}"
        )
